"""What a class says and where it stands: plain exceptions keep their class, and frames tell whose file it was."""

import pytest

from prism.evidence.logs import diagnose, read_text

TRACEBACK = "Traceback (most recent call last):\n"
BAD_JSON = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"


def reason_of_text(text):
    return diagnose(read_text(text)).verdict.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("KeyError: 'checkpoint'", "KeyError"),
        ("KeyError: 's3'", "KeyError"),
        ("TypeError: load_checkpoint() missing 1 required positional argument: 'model'", "TypeError"),
        ("TypeError: 'NoneType' object is not subscriptable", "TypeError"),
        ("ValueError: optimizer got an empty parameter list", "ValueError"),
        ("ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10 with cuda>=11.0", "ValueError"),
        ("ValueError: ('s3://b/0.tar: no gopen handler defined', 's3://b/0.tar')", "ValueError"),
        ("IndexError: Dataset index out of range", "IndexError"),
        ("NameError: name 'CUDA_HOME' is not defined", "NameError"),
        ("AttributeError: module 'torch.distributed' has no attribute 'init_process_group'", "AttributeError"),
        ("AssertionError: Torch not compiled with CUDA enabled", "AssertionError"),
        ("AssertionError: Default process group is not initialized", "AssertionError"),
        ("RuntimeError: expected scalar type Half but found Float", "RuntimeError"),
        ("RuntimeError: The size of tensor a (128) must match the size of tensor b (64)", "RuntimeError"),
        ("ImportError: cannot import name 'ConnectionError' from 'x'", "ImportError"),
        ("ModuleNotFoundError: No module named 'petrel_client'", "ImportError"),
        ("ZeroDivisionError: integer division or modulo by zero", "ZeroDivisionError"),
    ],
)
def test_a_plain_exception_keeps_its_class_whatever_its_words_quote(line, reason):
    assert reason_of_text(line) == reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/dataset/train.json'", "FileNotFoundError"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/model.safetensors'", "FileNotFoundError"),
        ("ValueError: File data/train.json not found.", "FileNotFoundError"),
        (
            "FileNotFoundError: Couldn't find 'x' on the Hub either: Dataset 'x' doesn't exist on the Hub",
            "DatasetLoadingError",
        ),
        ("OSError: x is not a local folder and is not a valid model identifier", "ModelLoadingError"),
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'a/b': '/m/x'", "ModelLoadingError"),
    ],
)
def test_a_missing_path_is_a_file_and_a_missing_name_is_a_model_or_a_dataset(line, reason):
    assert reason_of_text(line) == reason


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ('File "/x/transformers/configuration_utils.py", line 7, in from_pretrained', "ModelLoadingError"),
        ('File "/x/project/coco_dataset.py", line 7, in __init__', "DatasetLoadingError"),
        ('File "/x/project/options.py", line 7, in parse', "ValueError"),
    ],
)
def test_a_file_that_cannot_be_decoded_belongs_to_what_was_being_loaded(frame, reason):
    assert reason_of_text(f"{TRACEBACK}  {frame}\n    json.load(f)\n{BAD_JSON}") == reason


def test_frames_of_an_earlier_traceback_do_not_place_a_later_exception():
    loads = f'{TRACEBACK}  File "/x/coco_dataset.py", line 7, in __init__\nskipped one file'
    parses = f'{TRACEBACK}  File "/x/options.py", line 7, in parse\n{BAD_JSON}'
    assert reason_of_text(f"{loads}\n{parses}") == "ValueError"


def test_a_connection_lost_to_a_loader_worker_is_a_killed_loader():
    broken = "ConnectionResetError: [Errno 104] Connection reset by peer"
    frame = '  File "/x/torch/multiprocessing/reductions.py", line 294, in rebuild_storage_fd\n    fd = df.detach()\n'
    assert reason_of_text(f"{TRACEBACK}{frame}{broken}") == "DataloaderKilled"
    assert reason_of_text(f'{TRACEBACK}  File "a.py", line 2, in f\n{broken}') == "ConnectionError"


def test_a_warning_may_explain_the_failure_after_it_and_is_nothing_alone():
    warning = "UserWarning: Total length of `DataLoader` across ranks is zero."
    assert reason_of_text(f"{warning}\nZeroDivisionError: float division by zero") == "DatasetLoadingError"
    assert reason_of_text(warning) == "Unknown"


def test_a_remark_at_the_end_of_an_error_line_does_not_make_it_routine():
    ecc = "CUDA error: uncorrectable ECC error encountered. CUDA kernel errors might be asynchronously reported"
    assert reason_of_text(ecc) == "ECCError"
    assert reason_of_text("(MaxRetryError(\"HTTPSConnectionPool(host='h', port=443)\"), 'x')") == "ConnectionError"


def test_numbered_source_lines_of_a_notebook_are_no_evidence():
    text = "-> 14     check(x)\n   15     raise FileNotFoundError('no data')\nTypeError: check() missing 1 argument"
    assert reason_of_text(text) == "TypeError"


def test_an_assertion_on_the_device_is_the_cause_of_the_cuda_errors_after_it():
    line = "../aten/native/cuda/Indexing.cu:1141: block: [6,0,0], thread: [1,0,0] Assertion `a < b` failed."
    echo = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb )`"
    verdict = diagnose(read_text(f"{line}\n{echo}")).verdict
    assert (verdict.reason, verdict.action) == ("AssertionError", "stop")
    alone = diagnose(read_text("RuntimeError: CUDA error: device-side assert triggered")).verdict
    assert (alone.reason, alone.action) == ("CUDAError", "stop")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("jax.errors.TracerBoolConversionError: Attempted boolean conversion of traced array.", "TypeError"),
        ("EOFError", "ModelLoadingError"),
        ("omegaconf.errors.MissingMandatoryValue: Missing mandatory value: lr", "ValueError"),
        ("gzip.BadGzipFile: Not a gzipped file (b'xx')", "DatasetLoadingError"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array", "OutOfMemoryError"),
        ("struct.error: unpack requires a buffer of 8 bytes", "ValueError"),
        ("polars.exceptions.ColumnNotFoundError: text", "KeyError"),
        ("Exception: EOF while parsing a value at line 1 column 19", "ModelLoadingError"),
    ],
)
def test_a_library_class_below_a_traceback_is_known_by_what_it_derives_from(line, reason):
    frames = TRACEBACK + '  File "train.py", line 10, in <module>\n    run()\n'
    assert reason_of_text(frames + line + "\n") == reason
