"""The harness's own API models over our client: its payloads, its parsing, our retries, rates and counts."""

from __future__ import annotations

import copy
from typing import Any

from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from prism.errors import BadConfigError
from prism.evaluate.run.models.endpoint import Endpoint, EndpointClient


def open_endpoint_model(endpoint: Endpoint, has_template: bool) -> Any:
    """A harness model that asks a server; the chat API takes messages, so it needs `apply_chat_template`."""
    client = EndpointClient(endpoint)
    if endpoint.api == "chat":
        if not has_template:
            raise BadConfigError(f"{endpoint.url}: the chat API takes messages; set 'apply_chat_template: true'")
        return _Chat(client)
    if endpoint.tokenizer is None:
        raise BadConfigError(f"{endpoint.url}: name the folder of the model's tokenizer in 'endpoint.tokenizer'")
    return _Completions(client)


class _OverClient:
    """Replaces how the harness sends requests; all else is its own."""

    client: EndpointClient

    def model_call(self, messages: Any, *, generate: bool = True, gen_kwargs: Any = None, **kwargs: Any) -> Any:
        """One request of the harness."""
        me: Any = self
        payload = me._create_payload(
            me.create_message(messages),
            generate=generate,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=me._seed,
            eos=me.eos_string,
            **kwargs,
        )
        return self.client.post(payload)

    async def get_batched_requests(
        self, requests: list[Any], cache_keys: list[Any], *, generate: bool = True, ctxlens: Any = None, **kwargs: Any
    ) -> list[Any]:
        """All requests of the harness, as many at once as the endpoint may have."""
        me: Any = self
        lengths = ctxlens or [None] * len(requests)

        def ask(request: Any, length: Any) -> Any:
            found = self.model_call([request], generate=generate, **kwargs)
            if generate:
                return ["" if text is None else text for text in me.parse_generations(outputs=found)]
            return me.parse_logprobs(outputs=found, tokens=[request], ctxlens=[length])

        return self.client.at_once(ask, requests, lengths)


class _Completions(_OverClient, LocalCompletionsAPI):  # type: ignore[misc]
    def __init__(self, client: EndpointClient) -> None:
        self.client = client
        end = client.endpoint
        LocalCompletionsAPI.__init__(
            self,
            base_url=f"{end.url.rstrip('/')}/completions",
            model=end.model,
            tokenizer=end.tokenizer,
            tokenizer_backend="huggingface",
            max_length=end.max_length,
            num_concurrent=max(2, end.concurrency),
        )


class _Chat(_OverClient, LocalChatCompletion):  # type: ignore[misc]
    def __init__(self, client: EndpointClient) -> None:
        self.client = client
        end = client.endpoint
        LocalChatCompletion.__init__(
            self,
            base_url=f"{end.url.rstrip('/')}/chat/completions",
            model=end.model,
            max_length=end.max_length,
            num_concurrent=max(2, end.concurrency),
        )
