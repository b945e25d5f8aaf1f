"""Shell scripts are followed as a shell would, as far as nothing has to run."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.configs.shell.expansion import shown, unset_in
from astrarium.configs.shell.script import read_script
from astrarium.errors import InputError


def words(text: str) -> list[list[str]]:
    return [list(map(shown, command.words)) for command in read_script(text, "x.sh").commands]


def last(text: str) -> list[str]:
    return words(text)[-1]


WORDS: list[tuple[str, list[str]]] = [
    ("run a b", ["run", "a", "b"]),
    ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
    ("run a\\\n  b # not c\n", ["run", "a", "b"]),
    ("run a#b", ["run", "a#b"]),
    ('X="1 2"; run $X "$X" ${X}3', ["run", "1", "2", "1 2", "1", "23"]),
    ('X=; run $X "$X" end', ["run", "", "end"]),
    ("X=1\nX+=2\nrun $X", ["run", "12"]),
    (
        'A=(a "b c")\nA+=(d)\nrun "${A[@]}" ${A[1]} ${#A[@]}',
        ["run", "a", "b c", "d", "b", "c", "3"],
    ),
    ("A=(\n --x 1 # one\n --y 2\n)\nrun ${A[*]}", ["run", "--x", "1", "--y", "2"]),
    (
        'A=(a "b c"); B=(); set -- d e; run "${A[*]}" "x${A[*]:1}y" "$*" "${B[*]}" "${#A[*]}"',
        ["run", "a b c", "xb cy", "d e", "", "2"],
    ),
    ("run ${A:-8} ${B-9}", ["run", "8", "9"]),
    (': "${A:=2}" "${B=3}"; A=${A:=9}; run $A $B', ["run", "2", "3"]),
    ('A=()\nA+=(a "b c")\nrun "${A[@]}"', ["run", "a", "b c"]),
    ("A=4; run ${A:-8} ${A:+set} ${B:+set}", ["run", "4", "set"]),
    ("A=4; run ${B:-$A} ${C:-${A}0}", ["run", "4", "40"]),
    ("A=4; run $((A * 2)) $(( ($A+${A}) / 3 )) $((A%3))", ["run", "8", "2", "1"]),
    ("run $((A * 2))", ["run", "$A"]),
    ("run $((2 ** 9999))", ["run", "0"]),
    ("run $(hostname) `date`", ["run", "$(hostname)", "$(date)"]),
    ("run a > out.txt 2>&1 < in.txt", ["run", "a"]),
    ("run a | tee log", ["tee", "log"]),
    ("A=1 B=2 run ${A}x", ["run", "$Ax"]),
    ("A=0; A=1 run $A\nB=1; B=2 run $B; run $B", ["run", "1"]),
    ("export A=7; declare -x B=8; run $A$B", ["run", "78"]),
    ("A=1; unset A; run ${A:-none}", ["run", "none"]),
    ("C='run x'; eval $C y", ["run", "x", "y"]),
    ("f() {\n A=5\n}\nf\nrun $A", ["run", "5"]),
    ("function f {\n A=6\n}\nf\nrun $A", ["run", "6"]),
    ("cat <<EOF\nA=1\nEOF\nrun ${A:-unset}", ["run", "unset"]),
    ("for A in 1 2 3; do B=$A; done\nrun $B", ["run", "3"]),
    ('A=(); set --; run "${A[@]}" "$@" "" end', ["run", "", "end"]),
    (
        'set -- a \'b c\' d; shift; run $# "$1" "${@:1:1}" ${*}',
        ["run", "2", "b c", "b c", "b", "c", "d"],
    ),
    ("run ${10:-4}", ["run", "4"]),
    (
        "A=a/b.tar.gz; run ${A##*/} ${A%.*} ${A%%.*} ${A/b/c} ${A//a/x} ${A:2:3} ${#A}",
        ["run", "b.tar.gz", "a/b.tar", "a/b", "a/c.tar.gz", "x/b.txr.gz", "b.t", "10"],
    ),
    ("A=abC; run ${A^^} ${A,,} ${A^}", ["run", "ABC", "abc", "AbC"]),
    (
        "B=A; A=7; run ${!B} $((A>1?2:3)) $((A==7&&1)) $((2**3)) $((7/-2))",
        ["run", "7", "2", "1", "8", "-3"],
    ),
    ("declare -A M=([a]=1 [b]=2); run ${M[b]} ${#M[@]}", ["run", "2", "2"]),
    ("for ((i=0;i<3;++i)); do A+=$i; done; run $A", ["run", "012"]),
    ("i=0; while [ $i -lt 4 ]; do i=$((i+1)); [ $i = 3 ] && break; done; run $i", ["run", "3"]),
    ("IFS=, read -r A B <<< '2,4'; run $A $B", ["run", "2", "4"]),
    ("read -r -d '' A <<'EOF'\n--x $1\nEOF\nrun $A", ["run", "--x", "$1"]),
    ("A=$(echo 3 4); run $A $(dirname a/b) $(basename a/b)", ["run", "3", "4", "a", "b"]),
    ("f() { local A=2; echo $((A*$1)); }; A=1; run $(f 5) $A", ["run", "10", "1"]),
    ("run {1..3} x{a,b}", ["run", "1", "2", "3", "xa", "xb"]),
    ("while getopts 'a:b' o; do [ $o = a ] && A=$OPTARG; done; run ${A:-none}", ["run", "none"]),
    ("set -- -a 5; while getopts 'a:b' o; do [ $o = a ] && A=$OPTARG; done; run $A", ["run", "5"]),
    ("export A='run x'; bash -c '$A y'", ["run", "x", "y"]),
    ("A=1; (A=2); { A=3; }; run $A", ["run", "3"]),
    ("if echo if; then run do done fi; fi", ["run", "do", "done", "fi"]),
    ("A=1\r\nrun $A\r\n", ["run", "1"]),
]


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_words(text: str, expected: list[str]) -> None:
    assert last(text) == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash to compare with")
def test_bash_agrees() -> None:
    """The table is what a real shell makes of the texts; what a machine decides is left out."""
    script = ["run() { printf '%s\\1' run \"$@\"; printf '\\2'; }; tee() { run \"$@\"; }"]
    compared = [(text, words) for text, words in WORDS if not any("$" in w for w in words)]
    apart = (
        "\r",
        "out.txt",
        "|",
        "B=1; B=2 run",
        "EOF",
        "for A",
        "bash -c",
        "echo if",
    )  # not one command's output
    compared = [(text, words) for text, words in compared if not any(a in text for a in apart)]
    script += [f"(\n{text}\n)" for text, _ in compared]
    printed = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=True
    ).stdout
    real = [one.split("\1")[:-1] for one in printed.split("\2")[:-1] if one.startswith("run")]
    assert len(compared) > 15
    assert real == [words for _, words in compared]


@given(st.text(alphabet="aA=$(){}[]\"'`\\ \n;&|<>#-+*0@!if fi do done case esac", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        read_script(text, "x.sh")


KEYWORDS = (
    *("if", "then", "else", "elif", "fi", "for", "in", "do", "done", "case", "esac", "x)", ";;"),
    *(";", "\n", "a=1", "[ 1 = 1 ]", "f()", "{", "}", "run", "$a", "&&", "||", "a=("),
)


@given(
    st.lists(
        st.sampled_from(KEYWORDS),
        max_size=25,
    )
)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    with contextlib.suppress(InputError):
        read_script(" ".join(words), "x.sh")


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ('[ "$A" = "yes" ]', True),
        ("[[ $A == y* ]]", True),
        ('[ "$A" != yes ]', False),
        ("[ 4 -gt 3 ]", True),
        ("[[ 4 -le 3 ]]", False),
        ('[ -z "$NEVER" ]', True),
        ('[ -n "$A" ]', True),
        ('! [ -n "$A" ]', False),
        ("[ -f /some/file ]", None),
        ("grep -q x file", None),
        ("[[ $A = yes && 4 -gt 3 ]]", True),
        ("[ $A = yes ] && [ 4 -gt 3 ]", True),
        ("[ $A = no ] || [ 4 -lt 3 ]", False),
        ("[ $A = no -o 4 -gt 3 ]", True),
        ("(( 4 > 3 ))", True),
        ("[[ $A =~ ^y[a-z]+$ ]]", True),
        ("[[ -f x || $A == yes ]]", True),
        ("[[ -f x && $A == yes ]]", None),
        ('[ -n "$(hostname)" ]', None),
        ('[ "$NEVER" = 1 ]', False),
    ],
)
def test_conditions(condition: str, met: bool | None) -> None:
    text = f"A=yes\nif {condition}; then\n B=then\nelse\n B=else\nfi\nrun $B"
    either = {True: "then", False: "else", None: "<then or else>"}
    assert last(text) == ["run", either[met]]


def test_nested_blocks() -> None:
    text = """
    A=b
    if [ $A = a ]; then
      X=1
    elif [ $A = b ]; then
      if [ 1 -eq 2 ]; then X=2; else X=3; fi
      case $A in
        a) Y=1 ;;
        b|c)
          for i in 7; do Y=$i; done
          ;;
        *) Y=9 ;;
      esac
    else
      X=4
    fi
    run $X $Y
    """
    assert last(text) == ["run", "3", "7"]


def test_short_circuits() -> None:
    assert last("[ 1 -eq 1 ] && A=1 || A=2\nrun $A") == ["run", "1"]
    assert last("A=0\n[ 1 -eq 2 ] && A=1\nrun $A") == ["run", "0"]
    assert last("A=0\n[ -f x ] && A=1\nrun $A") == ["run", "<1 or 0>"]
    assert last("A=0\n[ 1 -eq 2 ] || A=1\nrun $A") == ["run", "1"]
    assert last("conda activate x && run a || exit 1") == ["run", "a"]


def test_what_is_not_known_is_noted_or_left_open() -> None:
    script = read_script(
        "source env.sh\nwhile true; do A=1; done\nif nvidia-smi; then A=2; fi\nrun $A $B", "x.sh"
    )
    assert [note.split(": ")[0] for note in script.notes] == ["x.sh:1", "x.sh:2"]
    a, b = (unset_in(word) for word in script.commands[-1].words[1:])
    assert a == ["A, by line 3"]
    assert b == ["B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a\nb "c', 'x.sh:2: this " is never closed'),
        ("a 'b", "x.sh:1: this ' is never closed"),
        ("a `b", "x.sh:1: this ` is never closed"),
        ("a $(b", r"x.sh:1: this \$\( is never closed"),
        ("a ${b", r"x.sh:1: this \$\{ is never closed"),
        ("A=(b c", "x.sh:1: the array A is never closed"),
        ("f() {\n f\n}\nf", "nested deeper"),
        ("A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 7, "grows beyond 1,000,000"),
    ],
)
def test_what_is_broken(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_script(text, "x.sh")
