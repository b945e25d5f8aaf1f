"""Reads what a torch module computes, as a graph of ATen operators (`astrarium.spmd.graph`).

`torch.export` runs the module on tensors without values, so that a model of any size is captured
in the memory of its operators' names. The module is in training mode: dropout stays. Operators
stay as the module calls them (`aten.linear`, `aten.scaled_dot_product_attention`); what changes
values in place becomes what computes new ones. Here alone, of all of the synthesis, is torch.
"""

from __future__ import annotations

import copy
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_unflatten

from astrarium.errors import InputError
from astrarium.spmd.capture import outputs
from astrarium.spmd.capture.masks import without_masks
from astrarium.spmd.capture.normalise import normalise
from astrarium.spmd.capture.outputs import Outputs, check_hooks
from astrarium.spmd.capture.torch_calls import operator_of
from astrarium.spmd.graph import (
    CONSTANT,
    DROPPING,
    DTYPE_BYTES,
    GETITEM,
    INPUT,
    PARAMETER,
    RANDOM,
    RECURRENT,
    Graph,
    Node,
    Ref,
    draws,
    kept_state,
)

FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
TORCH_FOLDER: Final = str(Path(torch.__file__).parent)
OWN_FILES: Final = (__file__, outputs.__file__)
WAY_OUT: Final = "compute with masks or a fixed capacity instead"
BATCH_NORM: Final = "aten.batch_norm.default"
# Operators that write into arguments without saying so: where the mean, the variance, and whether
# they are written stand.
WITH_STATISTICS: Final = {
    BATCH_NORM: ((3, "running_mean"), (4, "running_var"), (5, "training")),
    "aten.native_batch_norm.default": ((3, "running_mean"), (4, "running_var"), (5, "training")),
    "aten.instance_norm.default": ((3, "running_mean"), (4, "running_var"), (5, "use_input_stats")),
}
# Operators that write, and those of another name that do not.
NEW_INSTEAD: Final = {"aten.bernoulli_.float": torch.ops.aten.bernoulli.p}
ASIDE: Final = ("pin_memory", "layout", "non_blocking", "memory_format")


def capture(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    name: str = "",
    *,
    training: bool = True,
) -> Graph:
    """Return the graph of the module's loss on inputs of these shapes; values are not looked at."""
    with torch.device("cpu"):  # also where the caller made the module elsewhere
        return _captured(module, inputs, name or type(module).__name__, training)


def _captured(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], name: str, training: bool
) -> Graph:
    program = _exported(module, inputs, training)
    translation = _Translation(module, list(inputs))
    translation.add_sources(program)
    results = translation.add_nodes(program.graph_module)
    loss = translation.add_state(program, results)
    graph = normalise(without_masks(translation.nodes[: loss + 1]), name)
    _check_random(graph)
    if not graph.nodes[-1].needs_gradient:
        raise InputError(f"the loss of {graph.name} depends on no trainable parameter")
    return graph


def _exported(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], training: bool) -> Any:  # noqa: ANN401
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    check_hooks(module)
    bare = Outputs(_without_values(module, mode)).train(training)
    with mode:
        given = {
            key: torch.empty(value.shape, dtype=value.dtype, device="cpu")
            for key, value in inputs.items()
        }
    with _quiet():
        try:
            program = torch.export.export(bare, (), given, strict=False)
            return program.run_decompositions({}) if _changes_views(program) else program
        except InputError:
            raise
        except Exception as error:
            raise _explained(error, type(module).__name__) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's parts say about each other, and its half-made graphs: we say it."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def _without_values(module: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """A copy of the module whose tensors have shapes but no values; shared ones stay shared."""
    made: dict[int, Any] = {}
    for tensor in _tensors_of(module):
        if id(tensor) in made:
            continue
        with mode:
            empty = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
        trained = isinstance(tensor, torch.nn.Parameter)
        made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if trained else empty
    bare = copy.deepcopy(module, made)
    for part in bare.modules():
        # Keys and values of earlier tokens are for generating; export cannot return them.
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", None):
            config.use_cache = False
        # Experts as products by row: what `experts_of` recognises. Sorted by expert, rows of all
        # devices would be mixed.
        if getattr(config, "_experts_implementation", None):
            config._experts_implementation = "batched_mm"
    return bare


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        held = (*part._parameters.values(), *part._buffers.values())
        yield from (value for value in held if value is not None)
        # Tensors that are mere attributes have values to keep, unless they never had any.
        attributes = (value for value in vars(part).values() if isinstance(value, torch.Tensor))
        yield from (value for value in attributes if value.is_meta)


def _changes_views(program: Any) -> bool:  # noqa: ANN401  an exported program
    """Whether a changed value is read under other names: then torch has to rewrite the graph."""
    if not _Views().are_read(program.graph_module):
        return False
    if _stops_gradients(program):
        raise InputError(
            "a module that changes parts of tensors in place and computes other parts from its "
            "parameters without gradients cannot be captured; detach those, or write the change so "
            "that it computes a new tensor"
        )
    return True


class _Views:
    """Names that stand for the same memory, followed through regions of `torch.no_grad()` too."""

    def __init__(self) -> None:
        self._origin: dict[Any, Any] = {}  # of views and of what is changed: what they are views of
        self._first: dict[Any, Any] = {}  # of what is changed in place: its first name
        self._stale: dict[Any, set[Any]] = {}  # by origin: first names with values that are old

    def are_read(self, graph_module: Any) -> bool:  # noqa: ANN401  a graph of torch
        """Whether a name is read whose memory was changed under another; or a buffer's part was."""
        for node in graph_module.graph.nodes:
            for read in node.all_input_nodes:
                if self._name(read) in self._stale.get(self._whole(read), ()):
                    return True
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                if self._in_region(graph_module, node):
                    return True
            elif isinstance(node.target, torch._ops.OpOverload) and self._changes_part(node):
                return True
        return False

    def _name(self, node: Any) -> Any:  # noqa: ANN401
        return self._first.get(node, node)

    def _whole(self, node: Any) -> Any:  # noqa: ANN401
        return self._origin.get(node, node)

    def _in_region(self, graph_module: Any, node: Any) -> bool:  # noqa: ANN401
        bodies = (arg for arg in node.all_input_nodes if arg.op == "get_attr")
        body = getattr(graph_module, next(bodies).target)
        given = [
            arg for arg in node.args if isinstance(arg, torch.fx.Node) and arg.op != "get_attr"
        ]
        places = (place for place in body.graph.nodes if place.op == "placeholder")
        for place, arg in zip(places, given, strict=True):
            self._origin[place], self._first[place] = self._whole(arg), self._name(arg)
        return self.are_read(body)

    def _changes_part(self, node: Any) -> bool:  # noqa: ANN401
        """Take a view or a change down; whether a part of a source is changed, read next step."""
        schema = node.target._schema
        if not node.args or not schema.returns or schema.returns[0].alias_info is None:
            return False
        first = node.args[0]
        whole = self._origin[node] = self._whole(first)
        if not schema.is_mutable:
            return False
        name = self._first[node] = self._name(first)
        others = {self._name(one) for one, of in self._origin.items() if of is whole} | {whole}
        self._stale.setdefault(whole, set()).update(others - {name})
        return name is not whole and whole.op == "placeholder"


def _stops_gradients(program: Any) -> bool:  # noqa: ANN401  an exported program
    """Whether something under `torch.no_grad()` depends on parameters: rewriting forgets that."""
    parameters = program.graph_signature.inputs_to_parameters
    trained: set[Any] = set()
    for node in program.graph.nodes:
        own = program.state_dict.get(parameters.get(node.name))
        if (own is not None and own.requires_grad) or trained.intersection(node.all_input_nodes):
            trained.add(node)
            if "set_grad_enabled" in str(node.target):
                return True
    return False


def _explained(error: Exception, name: str) -> InputError:
    """Say in which line of the module torch gave up, and what to do."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(TORCH_FOLDER) and frame.filename not in OWN_FILES
    ]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    line = f" ({frames[-1].line})" if frames and frames[-1].line else ""
    kind, words = type(error).__name__, str(error).strip().splitlines() or [""]
    if any(word in kind for word in ("DataDependent", "DynamicOutput", "UnsupportedOperator")):
        what = "a branch or a shape depends on the values of tensors"
        way_out = f"; {WAY_OUT}"
    else:
        what, way_out = f"{kind}: {words[0]}", ""
    return InputError(f"{name} cannot be captured{place}{line}: {what}{way_out}")


class _Translation:
    """Nodes so far, and which of them holds the value of each node of torch."""

    def __init__(self, module: torch.nn.Module, inputs: list[str]) -> None:
        self.module = module
        self.inputs = inputs
        self.nodes: list[Node] = []
        self.values: dict[Any, Any] = {}
        self.names: set[str] = set()
        self.draws = 0  # operators so far that draw random numbers
        self.owner: dict[int, str] = {}  # of what was written into a source: the source's name
        self.changed: dict[str, Ref] = {}  # the latest value of sources that are written into

    def add_sources(self, program: Any) -> None:  # noqa: ANN401  an exported program
        """Add inputs, parameters and constants, and what stands for them in torch's graph."""
        names = {id(value): key for key, value in self.module.named_parameters()}
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        known: dict[str, Ref] = {}
        places = (node for node in program.graph.nodes if node.op == "placeholder")
        inputs = iter(self.inputs)
        for spec, place in zip(program.graph_signature.input_specs, places, strict=True):
            kind = spec.kind.name
            target = (spec.target or "").removeprefix("module.")
            op: str = CONSTANT
            args: tuple[Any, ...] = ()
            if kind == "USER_INPUT":
                op, target = INPUT, next(inputs)
            elif kind == "PARAMETER":
                target = names[id(parameters[target])]
                op = PARAMETER if parameters[target].requires_grad else CONSTANT
            elif kind == "CONSTANT_TENSOR" and not _attribute(self.module, target):
                args, target = (_values(program.constants[spec.target], target),), ""
            key = f"{op} {target or spec.target}"
            if key not in known:
                value = place.meta["val"]
                path = target.rpartition(".")[0] if op != INPUT else ""
                known[key] = self._append(
                    Node(target or spec.target, op, tuple(value.shape), _dtype(value), args,
                         target=target, path=path, source=path)
                )  # fmt: skip
            self.values[place] = known[key]

    def add_nodes(self, graph_module: Any) -> list[Any]:  # noqa: ANN401
        """Add the operators of a graph of torch; return what it gives."""
        for node in graph_module.graph.nodes:
            if node.op == "output":
                return [self._argument(value) for value in node.args[0]]
            if node.op == "get_attr":
                self.values[node] = getattr(graph_module, node.target)
            elif node.op == "call_function":
                self._add(node)
        raise AssertionError("a graph without output")

    def _add(self, node: Any) -> None:  # noqa: ANN401  a node of torch
        if node.target is operator.getitem:
            self._add_item(node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._add_region(node)
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise _value_dependent(node, "a number")  # what computes with those there are
        elif "_assert" not in str(node.target) and "sym_constrain" not in str(node.target):
            self._add_operator(node)

    def _add_item(self, node: Any) -> None:  # noqa: ANN401
        whole, index = self.values[node.args[0]], node.args[1]
        if isinstance(whole, list):  # the results of a region
            self.values[node] = whole[index]
            return
        made = self.nodes[whole.node]
        shape, dtype = _shape(node, node.meta["val"]), _dtype(node.meta["val"])
        item = _item_of(replace(made, shape=shape, dtype=dtype), whole, index)
        self.values[node] = self._append(replace(item, name=node.name))

    def _add_region(self, node: Any) -> None:  # noqa: ANN401
        """Take in what runs under `torch.no_grad()` and the like, detached where it was."""
        settings = [value for value in node.args if not isinstance(value, torch.fx.Node)]
        body_at = next(
            index for index, value in enumerate(node.args)
            if isinstance(value, torch.fx.Node)
            and isinstance(self.values.get(value), torch.nn.Module)
        )  # fmt: skip
        body = self.values[node.args[body_at]]
        name, place = str(node.target), _first_source(body)
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            raise InputError(f"{name} ({place}) cannot be captured")
        if name == "wrap_with_autocast" and True in settings:
            raise InputError(
                f"autocast ({place}) cannot be captured; make the module in the dtype that "
                "it is to compute in"
            )
        places = [place for place in body.graph.nodes if place.op == "placeholder"]
        for place, value in zip(places, node.args[body_at + 1 :], strict=True):
            self.values[place] = self.values[value]
        before = dict(self.changed)
        results = self.add_nodes(body)
        if name == "wrap_with_set_grad_enabled" and settings[0] is False:
            results = [self._detached(value) for value in results]
            for target, value in list(self.changed.items()):
                if value is not before.get(target):
                    self._write(value, self._detached(value))
        self.values[node] = results

    def _detached(self, value: Ref) -> Ref:
        made = self.nodes[value.node]
        return self._append(
            replace(made, name=f"{made.name}_detached", op="aten.detach.default", args=(value,),
                    kwargs=(), target="")
        )  # fmt: skip

    def _add_operator(self, node: Any) -> None:  # noqa: ANN401
        op, in_place = node.target, node.target._schema.is_mutable
        if in_place:
            op = _functional(node)
        value = node.meta["val"]
        first = value[0] if isinstance(value, tuple | list) else value
        if not isinstance(first, torch.Tensor):
            raise _value_dependent(node, "a number")
        made = Node(
            node.name,
            str(op),
            _shape(node, first),
            _known_dtype(node, first),
            tuple(self._argument(item) for item in node.args),
            tuple(
                (key, self._argument(item)) for key, item in node.kwargs.items()
                if key not in ASIDE or (key == "memory_format" and item is None)
            ),
            source=_source(node),
            path=_path(node),
        )  # fmt: skip
        if count := draws(made):
            made = replace(made, draw=self.draws + 1)
            self.draws += count
        result = self._append(made)
        self.values[node] = result
        if in_place:
            self._write(self.values[node.args[0]], result)
        elif str(op) in WITH_STATISTICS:
            self._add_statistics(node, result)

    def _add_statistics(self, node: Any, made: Ref) -> None:  # noqa: ANN401
        """Batch norm in training writes new statistics beside its result, if it has any."""
        mean, variance, training = WITH_STATISTICS[str(node.target)]
        given = [_given(node, *place) for place in (mean, variance, training)]
        if given[0] is None or not given[2]:
            return
        if str(node.target) != BATCH_NORM:
            raise InputError(
                f"{node.target} ({_source(node)}) keeps statistics of its inputs in buffers, which"
                " only batch norm can; make it with track_running_stats=False"
            )
        whole = self.nodes[made.node]
        self.values[node] = self._append(_item_of(whole, made, 0))
        for number, place in enumerate(given[:2], 1):
            old = self.values[place]
            like = self.nodes[old.node]
            shaped = replace(whole, shape=like.shape, dtype=like.dtype)
            self._write(old, self._append(_item_of(shaped, made, number)))

    def _write(self, old: Ref, new: Ref) -> None:
        """From now on, readers of the old value read the new one."""
        source = self.nodes[old.node]
        own = source.target if source.op in (PARAMETER, CONSTANT) else ""
        name = self.owner.get(old.node, own)
        if name:
            self.owner[new.node], self.changed[name] = name, new
        self.values.update({key: new for key, held in self.values.items() if held is old})

    def add_state(self, program: Any, results: list[Any]) -> int:  # noqa: ANN401
        """Add what keeps the new values of buffers, if any are changed; the number of the loss."""
        specs = [
            (spec.kind.name, spec.target or "") for spec in program.graph_signature.output_specs
        ]
        pairs = list(zip(specs, results, strict=True))
        given = [value for (kind, _), value in pairs if kind == "USER_OUTPUT"]
        loss, assigned = tree_unflatten(given, program.call_spec.out_spec)
        written = {
            target.removeprefix("module."): value
            for (kind, target), value in pairs if kind == "BUFFER_MUTATION"
        }  # fmt: skip
        new: dict[str, Ref] = {**self.changed, **written, **assigned}
        trained = {node.target for node in self.nodes if node.op == PARAMETER}
        for name in sorted(trained & new.keys()):
            place = self.nodes[new[name].node].source
            raise InputError(
                f"parameter {name!r} is changed in every step ({place}); only the"
                " optimizer may change a parameter: compute a new tensor of it"
            )
        if new:
            made = self.nodes[loss.node]
            return self._append(kept_state(made, loss, new)).node
        return int(loss.node)

    def _append(self, node: Node) -> Ref:
        name, count = node.name, 1
        while name in self.names:
            count += 1
            name = f"{node.name}_{count}"
        self.names.add(name)
        self.nodes.append(replace(node, name=name))
        return Ref(len(self.nodes) - 1)

    def _argument(self, value: Any) -> Any:  # noqa: ANN401  any argument of torch
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self._argument(item) for item in value]
        if isinstance(value, torch.device):
            return "torch.device"
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        return value


def _item_of(made: Node, whole: Ref, index: int) -> Node:
    """One of several results, of the shape and type that `made` has."""
    name = f"{made.name}_{index}"
    return replace(made, name=name, op=GETITEM, args=(whole, index), kwargs=(), draw=0)


def _given(node: Any, position: int, name: str) -> Any:  # noqa: ANN401
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _check_random(graph: Graph) -> None:
    """Refuse random numbers other than those that are drawn by position."""
    found = [
        f"{node.op} ({node.source})"
        for node in graph.nodes
        if not node.is_source and "." in node.op and _draws_alone(node)
    ]
    if found:
        raise InputError(
            f"{graph.name} draws random numbers with {', '.join(dict.fromkeys(found))}: devices"
            " would each draw their own; use nn.Dropout, rand_like, randn_like or bernoulli, or"
            " give them to the module as inputs"
        )


def _draws_alone(node: Node) -> bool:
    """Whether an operator draws numbers that depend on who runs it."""
    if node.draw or node.op.startswith((*DROPPING, *RECURRENT)):  # or draws none at all
        return False
    return node.op in RANDOM or torch.Tag.nondeterministic_seeded in operator_of(node.op).tags


def _attribute(module: torch.nn.Module, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return isinstance(module, torch.Tensor)


def _values(tensor: torch.Tensor, name: str) -> Any:  # noqa: ANN401  nested lists
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        raise InputError(
            f"the values of the tensor {name!r}, made while the module runs, are not known; "
            "register it as a buffer"
        )
    return tensor.tolist()


def _functional(node: Any) -> Any:  # noqa: ANN401  operators
    """The operator that gives the new value instead of writing it."""
    if str(node.target) in NEW_INSTEAD:
        return NEW_INSTEAD[str(node.target)]
    packet = str(node.target.overloadpacket).removeprefix("aten.")
    found = getattr(torch.ops.aten, packet.removesuffix("_"), None)
    overload = node.target._overloadname
    if not packet.endswith("_") or found is None or overload not in found.overloads():
        raise InputError(
            f"{node.target} ({_source(node)}) changes a tensor in place and has no form that "
            "does not; write it so that it computes a new one"
        )
    return getattr(found, overload)


def _shape(node: Any, value: Any) -> tuple[int, ...]:  # noqa: ANN401
    if not all(isinstance(size, int) for size in value.shape):
        raise _value_dependent(node, "a shape")
    return tuple(value.shape)


def _value_dependent(node: Any, what: str) -> InputError:  # noqa: ANN401
    return InputError(
        f"{node.target} ({_source(node)}) makes {what} of the values of tensors; {WAY_OUT}"
    )


def _known_dtype(node: Any, value: torch.Tensor) -> str:  # noqa: ANN401
    found = _dtype(value)
    if found not in DTYPE_BYTES:
        raise InputError(
            f"{node.target} ({_source(node)}) gives numbers of type {found}, with which programs do"
            f" not compute; they know {', '.join(DTYPE_BYTES)}"
        )
    return found


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _first_source(body: Any) -> str:  # noqa: ANN401  a module of torch
    sources = (_source(node) for node in body.graph.nodes if node.op == "call_function")
    return next(filter(None, sources), "")


def _path(node: Any) -> str:  # noqa: ANN401
    stack = node.meta.get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("", None))[0]
    return re.sub(r"@\d+", "", last).removeprefix("module").removeprefix(".")


def _source(node: Any) -> str:  # noqa: ANN401
    """The module's path, and the innermost line that is not torch's own."""
    frames = [
        frame for frame in FRAME.finditer(node.meta.get("stack_trace") or "")
        if not frame["file"].startswith(TORCH_FOLDER) and frame["file"] not in OWN_FILES
    ]  # fmt: skip
    line = f"{Path(frames[-1]['file']).name}:{frames[-1]['line']}" if frames else ""
    return ", ".join(part for part in (_path(node), line) if part)
