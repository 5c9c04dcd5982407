"""What the user's turns of self-written conversations begin with: everyday requests, all ours.

The target writes the rest of the turn, so a few words are enough to steer it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from transformers import PreTrainedTokenizerBase

from .selfplay import Script

TOPICS = {
    "anything": ("", "", "", "", "Can you", "How do I", "I'm", "Hi,", "What", "Please", "I need help with"),
    "questions": (
        "What is the capital of", "Who was the first", "When did the", "Where is", "What are the main causes of",
        "How many", "Which country", "Who wrote", "What does it mean when", "Why do", "Who is the current",
        "What year was", "how long does it take to", "when was the last time", "what is the name of the",
        "where does the", "who plays", "What is the difference between",
    ),
    "explanations": (
        "Explain how", "Explain the concept of", "Describe the process of", "Compare and contrast", "How does a",
        "What are the advantages and disadvantages of", "Give me an overview of the history of", "What role does",
        "Explain to a child why", "What would happen if", "Discuss the impact of", "List five examples of",
    ),
    "writing": (
        "Write a short story about", "Write an email to", "Write a blog post about", "Write a poem about",
        "Draft a letter to", "Write a product description for", "Compose a speech", "Write a review of",
        "Come up with a catchy slogan for", "Write a dialogue between", "Give me ideas for", "Plan a three-day trip",
        "Write an outline for an essay on", "Pretend you are", "Imagine you are a", "Act as a",
    ),
    "mathematics": (
        "A farmer has", "Tom buys", "Maria earns $", "A train travels", "There are 24 students in", "Lisa read",
        "If a shirt costs $", "A recipe needs", "Each box holds", "John has 3 times as many", "A tank is filled at",
        "The sum of two numbers is", "What is the area of", "Solve for x:", "Calculate", "On Monday a bakery sold",
        "A company has", "Sarah and her brother",
    ),
    "code": (
        "Write a Python function that", "Write a function in JavaScript to", "Write a SQL query that",
        "Fix the bug in this code:\n\n```python\ndef", "Explain what this code does:\n\n```python\n", "How do I sort",
        "Write a program that", "Implement a class", "Write a bash script to", "Write an HTML page",
        "Create a regular expression that", "What is the time complexity of",
    ),
    "translation": (
        "Translate this sentence into English:", "Translate from German into English: Die", "How do you say",
        "Translate from German into English: Der", "Translate this from German: Ich", "In English, please: Das",
        "Translate the following German text to English: In", "Translate into English: Es ist",
        "Translate from French into English: Le", "Translate from French to English: Nous",
        "Translate from Spanish into English: La", "Translate this Spanish sentence to English: El",
        "Translate from Italian to English: Il", "Translate into German: The", "Translate into Spanish: We",
        "Translate the following into French: I", "What does this mean in English? Wir",
    ),
    "summaries": (
        "Summarize the following article in a few sentences.\n\n", "Summarize this text:\n\n", "Summarize: The",
        "Give me a short summary of this news story:\n\n", "What are the key points of this passage?\n\n",
        "Write a headline and a one-sentence summary for this article:\n\n(CNN)", "Summary, please:\n\nA",
        "Summarize this article:\n\nLONDON", "Shorten this report to its main points:\n\n",
    ),
    "texts": (
        "Answer the question using the passage below.\n\nPassage:", "Use this context to answer.\n\nContext:",
        "Read this text and answer the question that follows.\n\n", "Here is some background information:\n\n",
        "Based on these documents, answer the question.\n\nDocument 1:", "Extract all names and dates from:\n\n",
        "Rewrite this paragraph in simpler words:\n\n", "Correct the grammar of this text:\n\n",
        "Classify the sentiment of this review:", "Turn these notes into a paragraph:\n\n-",
    ),
}  # fmt: skip
LONG = ("summaries", "texts")  # the user brings a text along
LONG_WEIGHT = 3  # times as many of these: their answers are short, and copying from a text is hard for a small model
SYSTEM_PROMPTS = (
    "You are a helpful assistant. Answer briefly.",
    "You are an expert programmer. Answer with code and a short explanation.",
    "You are a patient mathematics tutor who works step by step.",
    "You are a translator. Reply with the translation only.",
    "You summarize texts faithfully and concisely.",
    "You are a creative writer with a vivid style.",
)
SYSTEM_SHARE = 0.1  # of the conversations that get one of these; the others have what the chat template puts there
GREEDY_SHARE = 0.75  # of the answers; the others are sampled at one of these temperatures
TEMPERATURES = (0.7, 1.0)
MARK = "<<user>>"  # stands for the user's text while the chat template is taken apart


def scripts(tokenizer: PreTrainedTokenizerBase, seed: int, longest: int = 384) -> Iterator[Script]:
    """An endless mix. `longest`: tokens of a conversation, roughly."""
    rng = random.Random(seed)
    while True:
        (topic,) = rng.choices(list(TOPICS), [LONG_WEIGHT if topic in LONG else 1 for topic in TOPICS])
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else None
        before, after = around_user(tokenizer, system)
        opening = rng.choice(TOPICS[topic])
        yield Script(
            opening=tuple(encode(tokenizer, before + opening)),
            closing=tuple(encode(tokenizer, after)) if after else (),
            user=(longest * (5 if topic in LONG else 2) // 8) if after else 0,
            answer=longest // 2,
            temperature=0.0 if rng.random() < GREEDY_SHARE else rng.choice(TEMPERATURES),
        )


def around_user(tokenizer: PreTrainedTokenizerBase, system: str | None) -> tuple[str, str]:
    """What the chat template puts before and after a user's text; without a template, the text's beginning alone."""
    if not tokenizer.chat_template:
        return tokenizer.bos_token or tokenizer.eos_token or "", ""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": MARK})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition(MARK)
    return before, after


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids
