"""TRL's SFTTrainer on a small GPT-2 and a tokenizer of eight words."""

import tempfile

from datasets import Dataset
from own_clock import own_clock
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Clock(TrainerCallback):
    """Notes when steps end."""

    def on_pre_optimizer_step(self, *_, **__):
        mark()


words = ["a", "b", "c", "d", "e", "f", "<pad>", "<eos>"]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "a"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
known = {"pad_token": "<pad>", "eos_token": "<eos>"}
shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": len(words), "n_positions": 32}
special = {"bos_token_id": 7, "eos_token_id": 7, "pad_token_id": 6}
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        callbacks=[Clock()],
        model=GPT2LMHeadModel(GPT2Config(**shape, **special)),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **known),
        train_dataset=Dataset.from_dict({"text": ["a b c d e f " * 4] * 512}),
        args=SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_length=32,
            max_steps=100_000,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
    )
    with own_clock() as mark:
        trainer.train()
