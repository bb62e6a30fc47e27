"""Secrets never leave a log, and harmless text is left alone."""

import pytest

from prism.evidence.logs import diagnose, read_text
from prism.evidence.logs.secrets import mask


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
        ("wandb: api key 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("wandb: Using API key: 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("python train.py --wandb-key 0123456789abcdef0123 --lr 1", "0123456789abcdef0123"),
        ("python train.py --hf_token=abcdefgh1234", "abcdefgh1234"),
        ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUA"),
        ("AZURE_STORAGE_KEY=Zm9vYmFyYmF6cXV4Zm9vYmFy==", "Zm9vYmFyYmF6"),
        ("os.environ['AWS_SESSION_TOKEN'] = 'FwoGZXIvYXdzEJr'", "FwoGZXIvYXdzEJr"),
        ("{'AWS_SESSION_TOKEN': 'FwoGZXIvYXdzEJr'}", "FwoGZXIvYXdzEJr"),
        ("+ curl -u alice:hunter22 https://registry/v2/", "hunter22"),
        ("+ curl -sS --user alice:hunter22 https://registry/v2/", "hunter22"),
        ("sshpass -p hunter22 ssh node-1 hostname", "hunter22"),
        ("docker login -u alice -p hunter22 registry", "hunter22"),
        ("machine api.wandb.ai login user password 0123456789abcdef", "0123456789abcdef"),
        ("DefaultEndpointsProtocol=https;AccountName=x;AccountKey=abc123def456==;EndpointSuffix=core", "abc123def456"),
        ("export MYSQL_PASSWORD=hunter22", "hunter22"),
    ],
)
def test_secrets_are_masked(text, secret):
    assert secret in text
    assert secret not in mask(text)
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second: 3120",
        "KeyError: 'token_type_ids'",
        "num_tokens=2048",
        "key: 3",
        "--num-key-value-heads 8 --pad-token <pad> --max-token 4096",
        "RuntimeError: The expanded size of the tensor (2048) must match the existing size (1024)",
        "/data/checkpoints/experiment/global_step1000/zero_pp_rank_0_mp_rank_00_optim_states.pt is missing",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 pulled",
    ],
)
def test_words_that_only_look_like_secrets_stay(text):
    assert mask(text) == text


def test_evidence_is_masked():
    text = "ConnectionError: cannot reach https://bob:hunter2@registry/v2"
    evidence = diagnose(read_text(text)).verdict.evidence
    assert evidence
    assert "hunter2" not in evidence[0].text


def test_masking_is_quick_on_long_and_hostile_lines():
    for text in ("key=" * 3000, "a" * 60_000, "curl " * 3000, "A1b" * 20_000, "machine " * 3000, "--" * 20_000):
        assert isinstance(mask(text), str)
