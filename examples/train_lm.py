"""Trains a small language model on a text, on ranks of different speed.

astrarium synthesize examples/language_model.py:make --gpus v100:2,t4:2 --batch 64 --all-devices
torchrun --nproc-per-node 4 examples/train_lm.py program.json README.md --steps 200
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from language_model import make
from torch.optim.lr_scheduler import CosineAnnealingLR

import astrarium


def rows_of(text: bytes, length: int) -> list[dict[str, torch.Tensor]]:
    """Overlapping parts of a text, each with the bytes that follow."""
    symbols = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    parts = symbols.unfold(0, length + 1, length // 4)
    return [{"text": part[:-1], "following": part[1:]} for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps from checkpoint to checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="where it is written, and read if there")
    parser.add_argument("--weights", type=Path, help="a file for safetensors, at the end")
    asked = parser.parse_args()

    program = astrarium.load_program(asked.program)
    source = program.document.source
    torch.manual_seed(0)
    module, inputs = make(source.batch, **source.sizes)
    trainer = program.trainer(module, lambda p: torch.optim.AdamW(p, lr=3e-3), clip_norm=1.0)
    schedule = CosineAnnealingLR(trainer.optimizer, asked.steps)
    if asked.checkpoint is not None and asked.checkpoint.exists():
        trainer.load(asked.checkpoint, schedule=schedule)
    loader = trainer.loader(rows_of(asked.text.read_bytes(), inputs["text"].shape[1]), shuffle=True)
    while trainer.steps_done < asked.steps:
        for batch in loader:  # this rank's rows
            step = trainer.step(batch)
            schedule.step()
            if trainer.rank == 0:
                print(f"step {trainer.steps_done} loss {step.loss:.6f}", flush=True)
            if asked.checkpoint is not None and trainer.steps_done % asked.every == 0:
                trainer.save(asked.checkpoint, schedule=schedule)
            if trainer.steps_done == asked.steps:
                break
    if asked.weights is not None:
        trainer.save_safetensors(asked.weights)


if __name__ == "__main__":
    main()
