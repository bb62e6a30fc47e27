"""A small server that speaks OpenAI's API over a Hugging Face model: completions with log probabilities, chats."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Served:
    """The model; one request computes at a time, like one device."""

    def __init__(self, folder: Path, delay_s: float = 0.0) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.lock = threading.Lock()
        self.delay_s = delay_s
        self.refuse: list[tuple[int, dict[str, str]]] = []  # what the next requests get instead of an answer
        self.num_requests = 0
        self.max_at_once = 0
        self._at_once = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompts = body["prompt"]
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        choices, read, written = [], 0, 0
        for i, prompt in enumerate(prompts):
            tokens = (
                self.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else list(prompt)
            )
            made, stopped = self._continue(tokens, int(body.get("max_tokens", 16)), body.get("stop") or [])
            read, written = read + len(tokens), written + len(made)
            shown = [*tokens, *made] if body.get("echo") else made
            choice = {"index": i, "text": self.tokenizer.decode(shown), "finish_reason": "length", "logprobs": None}
            if not body.get("echo"):
                choice["text"] = stopped
            if body.get("logprobs"):
                choice["logprobs"] = self._weigh(tokens, made, bool(body.get("echo")))
            choices.append(choice)
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {"object": "text_completion", "model": body.get("model"), "choices": choices, "usage": usage}

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        found = self.complete({**body, "prompt": prompt})
        message = {"role": "assistant", "content": found["choices"][0]["text"]}
        return {**found, "choices": [{"index": 0, "message": message, "finish_reason": "length"}]}

    def _continue(self, tokens: list[int], count: int, stop: Any) -> tuple[list[int], str]:
        stops = [stop] if isinstance(stop, str) else list(stop)
        made: list[int] = []
        text = ""
        with self.lock, self.torch.inference_mode():
            for _ in range(count):
                logits = self.model(self.torch.tensor([[*tokens, *made]])).logits[0, -1]
                made.append(int(logits.argmax()))
                text = self.tokenizer.decode(made, skip_special_tokens=True)
                cut = [text.index(word) for word in stops if word and word in text]
                if made[-1] == self.tokenizer.eos_token_id or cut:
                    return made, text[: min(cut)] if cut else text
        return made, text

    def _weigh(self, tokens: list[int], made: list[int], echo: bool) -> dict[str, Any]:
        whole = [*tokens, *made]
        with self.lock, self.torch.inference_mode():
            rows = self.model(self.torch.tensor([whole])).logits[0].float().log_softmax(-1)
        offsets, at = [], 0
        words = [self.tokenizer.decode([token]) for token in whole]
        for word in words:
            offsets.append(at)
            at += len(word)
        values: list[Any] = [None]
        tops: list[Any] = [None]
        for i in range(1, len(whole)):
            best = int(rows[i - 1].argmax())
            values.append(float(rows[i - 1][whole[i]]))
            tops.append(
                {
                    words[i]: values[-1],
                    self.tokenizer.decode([best]) + ("" if best == whole[i] else "*"): float(rows[i - 1][best]),
                }
            )
        first = 0 if echo else len(tokens)
        keys = {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
        return {name: held[first:] for name, held in keys.items()}

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], dict[str, Any]]:
        with self.lock:
            self.num_requests += 1
            self._at_once += 1
            self.max_at_once = max(self.max_at_once, self._at_once)
            refused = self.refuse.pop(0) if self.refuse else None
        try:
            if refused is not None:
                return refused[0], refused[1], {"error": {"message": "slow down"}}
            if self.delay_s:
                time.sleep(self.delay_s)
            return 200, {}, self.chat(body) if path.endswith("/chat/completions") else self.complete(body)
        finally:
            with self.lock:
                self._at_once -= 1


def serve(served: Served, port: int = 0) -> http.server.ThreadingHTTPServer:
    """Begin to answer in threads of this process; the caller shuts it down."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, document = served.answer(self.path, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    running = serve(Served(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
    print(running.server_address[1], flush=True)
    sys.stdin.read()
