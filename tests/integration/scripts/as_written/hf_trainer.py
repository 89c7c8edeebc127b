"""transformers' Trainer on a small GPT-2 made from its configuration."""

import tempfile

import torch
from own_clock import own_clock
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Clock(TrainerCallback):
    """Notes when steps end."""

    def on_pre_optimizer_step(self, *_, **__):
        mark()


torch.manual_seed(0)
shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 128, "n_positions": 32}
model = GPT2LMHeadModel(GPT2Config(**shape))
tokens = torch.randint(0, 128, (512, 32))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        callbacks=[Clock()],
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=100_000,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
    )
    with own_clock() as mark:
        trainer.train()
