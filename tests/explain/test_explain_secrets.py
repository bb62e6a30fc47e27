"""Secrets never leave a log, and harmless text is left alone."""

import pytest

from prism.explain import diagnose, read_text
from prism.explain.secrets import mask


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET https://user:hunter2@host/x", "hunter2"),
        ("url https://b.s3.amazonaws.com/k?X-Amz-Signature=abcdef012345&x=1", "abcdef012345"),
        ("aws key AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("Authorization: Bearer abc.def.ghijkl", "abc.def.ghijkl"),
        ("--wandb-api-key 0123456789abcdef0123", "0123456789abcdef0123"),
        ('{"password": "correct horse"}', "correct"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefg", "eyJzdWIiOiIxMjM0In0"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
        ("secret_access_key=wJalrXUtnFEMIK7MDENG", "wJalrXUtnFEMIK7MDENG"),
    ],
)
def test_secrets_are_masked(text, secret):
    assert secret in text
    assert secret not in mask(text)
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize("text", ["tokens per second: 3120", "KeyError: 'token_type_ids'", "num_tokens=2048", "key: 3"])
def test_words_that_only_look_like_secrets_stay(text):
    assert mask(text) == text


def test_evidence_is_masked():
    text = "ConnectionError: cannot reach https://bob:hunter2@registry/v2"
    evidence = diagnose(read_text(text)).verdict.evidence
    assert evidence
    assert "hunter2" not in evidence[0].text
