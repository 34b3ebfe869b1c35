"""An exported checkpoint: the frozen model's logits bit for bit, 8 bits a weight, closed to all else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pangu_hif8.codes_linear import HiF8CodesLinear
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.export import export_hif8, load_hif8
from pangu_hif8.export_files import CONFIG_FILE, TENSORS_FILE
from pangu_hif8.files import digest, sha256_file, write_json
from pangu_hif8.linear import converted_linears, prepare_qat

TOKENS = torch.randint(0, 64, (3, 11), generator=torch.Generator().manual_seed(5))
ALGORITHMS = ("most_recent", "exponential_smoothing", "current", "max_window")
LAYER = "model.layers.1.mlp.gate_proj"


def frozen_llama(
    algo: str = "max_window", overflow: str = "saturate", dtype: torch.dtype = torch.float32, **more: Any
) -> LlamaForCausalLM:
    """A tiny Llama of 4 blocks, 2 quantized, after two training steps, its scales frozen."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=4, **(sizes | more))).to(dtype)
    state = prepare_qat(model, QuantConfig(amax_compute_algo=algo, overflow=overflow), 1, 1)
    state.set_mode("quantize")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.update()
    state.set_mode("frozen")
    return model.eval()


def scaling_state(model: LlamaForCausalLM) -> Any:
    return model.get_submodule(LAYER).state


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good export, not to be changed."""
    out = tmp_path_factory.mktemp("export") / "out"
    export_hif8(frozen_llama(), out)
    return out


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """The same to damage."""
    out = tmp_path / "copy"
    out.mkdir()
    for path in exported.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out


def change_config(out: Path, **changes: Any) -> None:
    """Change the configuration as someone would who knows the format: with a digest that fits."""
    values = json.loads((out / CONFIG_FILE).read_text())
    values = {k: v for k, v in (values | changes).items() if k != "settings_sha256" and v is not None}
    write_json(out / CONFIG_FILE, values | {"settings_sha256": digest(values)})


def change_tensors(out: Path, **changes: torch.Tensor | None) -> None:
    """Change, add or (None) remove tensors, with a sha256 that fits."""
    tensors = load_file(out / TENSORS_FILE) | changes
    save_file({name: t for name, t in tensors.items() if t is not None}, out / TENSORS_FILE)
    change_config(out, tensors_sha256=sha256_file(out / TENSORS_FILE))


# ---- the same numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("overflow", ["saturate", "taper"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_logits_are_the_frozen_model_s_bit_for_bit(algo, overflow, tied, tmp_path):
    model = frozen_llama(algo, overflow, tie_word_embeddings=tied)
    with torch.no_grad():
        model.model.layers[1].post_attention_layernorm.weight.mul_(3.0)  # inputs beyond the estimate,
        for factor, row in ((3.0, 0), (1e5, 1)):  # and weights beyond it, and beyond the format
            model.get_submodule(LAYER).weight[row].mul_(factor)
    export_hif8(model, tmp_path / "out")
    loaded = load_hif8(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(model))
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert type(loaded) is LlamaForCausalLM and not loaded.training


def test_overflow_modes_differ_so_that_equality_means_something():
    outputs = []
    for overflow in ("saturate", "taper"):
        model = frozen_llama("most_recent", overflow)
        with torch.no_grad():
            model.model.layers[1].post_attention_layernorm.weight.mul_(3.0)
        outputs.append(logits(model))
    assert not torch.equal(*outputs)


@pytest.mark.parametrize(
    "more",
    [
        dict(dtype=torch.bfloat16),
        dict(dtype=torch.float16),
        dict(mlp_bias=True, attention_bias=True),
        dict(attn_implementation="eager"),
        dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ],
    ids=str,
)
def test_other_types_and_architectures_are_equal_too(more, tmp_path):
    model = frozen_llama(**more)
    export_hif8(model, tmp_path / "out")
    loaded = load_hif8(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.dtype == model.dtype
    assert loaded.config._attn_implementation == model.config._attn_implementation


def test_gradients_reach_the_input_as_in_the_frozen_model(exported):
    grads = []
    for model in (frozen_llama(), load_hif8(exported)):
        x = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
        model(inputs_embeds=x).logits.square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_buffers_that_share_memory_are_stored_each(tmp_path):
    model = frozen_llama()
    model.model.rotary_emb.original_inv_freq = model.model.rotary_emb.inv_freq
    export_hif8(model, tmp_path / "out")
    assert torch.equal(logits(load_hif8(tmp_path / "out")), logits(model))


def test_an_export_again_gives_the_same_bytes(exported, tmp_path):
    export_hif8(frozen_llama(), tmp_path / "again")
    for name in (CONFIG_FILE, TENSORS_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_exporting_and_loading_change_neither_model_nor_random_state(tmp_path):
    model = frozen_llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaling, random_state = scaling_state(model).state_dict(), torch.get_rng_state()
    export_hif8(model, tmp_path / "out")
    load_hif8(tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    after = scaling_state(model).state_dict()
    assert all(torch.equal(after[name], scaling[name]) for name in scaling)


# ---- eight bits ----------------------------------------------------------------------------------------


def test_weights_stay_codes_in_memory_and_every_other_tensor_is_as_trained(exported):
    model, loaded = frozen_llama(), load_hif8(exported)
    layers = {name: m for name, m in loaded.named_modules() if isinstance(m, HiF8CodesLinear)}
    assert list(layers) == converted_linears(model)
    logits(loaded)
    for name, layer in layers.items():
        assert layer.weight_codes.dtype == torch.uint8
        assert sum(b.nbytes for b in layer.buffers()) == layer.weight_codes.numel() + 8
        assert torch.equal(layer.dequantize(), model.get_submodule(name)._quantized_weight())
    trained = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, trained[name])
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])


@pytest.mark.parametrize("algo", ["max_window", "current"])
def test_file_sizes(algo, tmp_path):
    model = frozen_llama(algo, hidden_size=128, intermediate_size=352)
    sizes = export_hif8(model, tmp_path / "out")
    num_weights = 6 * 128 * 352
    num_scales = 6 if algo == "current" else 12
    assert sizes.num_layers == 6
    assert (sizes.weights_before, sizes.weights_after) == (4 * num_weights, num_weights + 4 * num_scales)
    assert sizes.whole_after == (tmp_path / "out" / TENSORS_FILE).stat().st_size
    header_and_buffers = 10_000
    saved = sizes.weights_before - sizes.weights_after
    assert 0 <= sizes.whole_after - (sizes.whole_before - saved) < header_and_buffers


def test_a_cast_of_the_model_leaves_codes_and_scales(exported):
    plain, cast = load_hif8(exported), load_hif8(exported).to(torch.bfloat16)
    assert cast.lm_head.weight.dtype == torch.bfloat16
    for name, buffer in plain.get_submodule(LAYER).named_buffers():
        other = cast.get_submodule(LAYER).get_buffer(name)
        assert other.dtype == buffer.dtype and torch.equal(other, buffer)
    assert logits(cast).dtype == torch.bfloat16
    assert "input_scale=frozen" in repr(plain.get_submodule(LAYER))


def test_the_configuration_says_what_is_in_the_file(exported):
    values = json.loads((exported / CONFIG_FILE).read_text())
    assert (values["format"], values["version"]) == ("pangu_hif8", 1)
    assert values["quantization"]["amax_compute_algo"] == "max_window"
    assert values["input_scale"] == "frozen" and values["layers"][0] == LAYER and len(values["layers"]) == 6
    assert values["model"]["model_type"] == "llama" and values["model"]["hidden_size"] == 32
    assert not {"_name_or_path", "auto_map"} & values["model"].keys()
    tensors = load_file(exported / TENSORS_FILE)
    assert tensors[f"{LAYER}.weight_codes"].dtype == torch.uint8
    assert tensors[f"{LAYER}.weight_scale"].dtype == tensors[f"{LAYER}.input_scale"].dtype == torch.float32
    assert f"{LAYER}.weight" not in tensors
    assert {path.name for path in exported.iterdir()} == {CONFIG_FILE, TENSORS_FILE}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in exported.iterdir())


def test_current_scaling_has_no_input_scale(tmp_path):
    export_hif8(frozen_llama("current"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / CONFIG_FILE).read_text())["input_scale"] == "current"
    assert not any(name.endswith("input_scale") for name in load_file(tmp_path / "out" / TENSORS_FILE))


# ---- what can't be exported ----------------------------------------------------------------------------


def refused(model: Any, out: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        export_hif8(model, out)
    assert len(str(caught.value).splitlines()) == 1
    assert not out.exists() and not list(out.parent.glob(f".{out.name}.*"))


def test_a_model_without_quantized_layers_is_refused(tmp_path):
    refused(LlamaForCausalLM(frozen_llama().config), tmp_path / "out", "no HiF8Linear")
    refused(torch.nn.Linear(2, 2), tmp_path / "out", "Llama-like")


@pytest.mark.parametrize("mode", ["off", "calibrate", "quantize"])
def test_scales_that_move_are_refused(mode, tmp_path):
    model = frozen_llama()
    scaling_state(model).set_mode(mode)
    refused(model, tmp_path / "out", f'in mode "{mode}"')


def test_a_cold_scale_is_refused_except_where_it_is_not_used(tmp_path):
    for algo in ALGORITHMS:
        model = frozen_llama(algo)
        scaling_state(model).estimate[3] = 0.0
        if algo == "current":
            export_hif8(model, tmp_path / "out")
        else:
            refused(model, tmp_path / algo, "1.up_proj.weight has no estimate")


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    model = frozen_llama()
    model.get_submodule(LAYER).weight.data[3, 4] = float("nan")
    refused(model, tmp_path / "out", "1.gate_proj.weight has values that are not finite")


def test_a_model_that_its_configuration_does_not_describe_is_refused(tmp_path):
    model = frozen_llama()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    refused(model, tmp_path / "out", "not what its configuration describes: 1 tensors are unexpected")
    model = frozen_llama()
    model.lm_head.weight = model.model.embed_tokens.weight  # tied by hand
    refused(model, tmp_path / "out", "1 tensors are missing, first lm_head.weight")
    model = frozen_llama()
    model.config.vocab_size = 65
    refused(model, tmp_path / "out", r"expected float \[65, 32\]")
    model = frozen_llama()
    model.config._attn_implementation = "flex_attention"
    refused(model, tmp_path / "out", "attention 'flex_attention' can't be exported")
    model = frozen_llama()
    model.config.mine = object()
    refused(model, tmp_path / "out", "can't be written as JSON")


def test_two_states_are_refused(tmp_path):
    model = frozen_llama()
    model.model.layers[2].mlp = frozen_llama().model.layers[2].mlp
    refused(model, tmp_path / "out", "several ScalingStates")


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_exists_is_never_overwritten(kind, tmp_path):
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="exists already"):
        export_hif8(frozen_llama(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    class Broken:
        def save_pretrained(self, directory: Path) -> None:
            (Path(directory) / "half").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        export_hif8(frozen_llama(), tmp_path / "new" / "out", tokenizer=Broken())
    assert not list((tmp_path / "new").iterdir())
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write"):
        export_hif8(frozen_llama(), blocked / "out")


# ---- what can't be loaded ------------------------------------------------------------------------------


def unloadable(out: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_hif8(out)
    assert len(str(caught.value).splitlines()) == 1


def test_no_export_and_foreign_files_are_refused(copy, tmp_path):
    unloadable(tmp_path / "nowhere", "holds no exported HiF8 model")
    unloadable(copy / TENSORS_FILE, "holds no exported HiF8 model")
    frozen_llama().config.save_pretrained(tmp_path / "hub")
    unloadable(tmp_path / "hub", "holds no exported HiF8 model")
    for text in ('{"model_type": "llama"}', "[1, 2]", '{"format": "gguf", "version": 1}', "null"):
        (copy / CONFIG_FILE).write_text(text)
        unloadable(copy, "no configuration of an exported HiF8 model")


def test_a_newer_version_is_named_as_such(copy):
    change_config(copy, version=2, novelty=True)
    unloadable(copy, "format version 2, this pangu_hif8 reads up to 1; update it")


@pytest.mark.parametrize("version", ["1", True, 0, 1.0, -3])
def test_a_version_that_never_was_is_refused(version, copy):
    change_config(copy, version=version)
    unloadable(copy, "states no version that exists")


def test_every_cut_of_a_file_is_refused(copy):
    for name in (CONFIG_FILE, TENSORS_FILE):
        whole = (copy / name).read_bytes()
        for length in {0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 2}:
            (copy / name).write_bytes(whole[:length])
            unloadable(copy, "damaged|no configuration|states no version")
        (copy / name).write_bytes(whole + whole[:8])
        unloadable(copy, "damaged")
        (copy / name).write_bytes(whole)
    load_hif8(copy)


def test_a_flipped_byte_anywhere_is_refused(copy):
    generator = torch.Generator().manual_seed(0)
    for name in (CONFIG_FILE, TENSORS_FILE):
        whole = (copy / name).read_bytes()
        for place in torch.randint(0, len(whole) - 1, (40,), generator=generator).tolist():
            flipped = bytearray(whole)
            flipped[place] ^= 0x01
            (copy / name).write_bytes(flipped)
            unloadable(copy, ".")
        (copy / name).write_bytes(whole)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{" * 100_000, b'{"format": NaN', b"[" * 100_000])
def test_a_configuration_that_is_no_json_is_refused(content, copy):
    (copy / CONFIG_FILE).write_bytes(content)
    unloadable(copy, "damaged or cut short")


def test_a_pickle_is_refused_and_never_read(copy, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("torch.load"))
    monkeypatch.setattr("pickle.load", lambda *a, **k: pytest.fail("pickle"))
    torch.save({"x": torch.ones(1)}, copy / TENSORS_FILE)
    unloadable(copy, "sha256 differs")
    change_config(copy, tensors_sha256=sha256_file(copy / TENSORS_FILE))
    unloadable(copy, "can't be read")


def test_a_missing_tensor_file_is_named(copy):
    (copy / TENSORS_FILE).unlink()
    unloadable(copy, f"{TENSORS_FILE} is missing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lm_head.weight": None}, "1 tensors are missing, first lm_head.weight"),
        ({f"{LAYER}.weight_codes": None}, "missing, first model.layers.1.mlp.gate_proj.weight_codes"),
        ({f"{LAYER}.input_scale": None}, "missing, first model.layers.1.mlp.gate_proj.input_scale"),
        ({"model.rotary_emb.inv_freq": None}, "missing, first model.rotary_emb.inv_freq"),
        ({"model.extra": torch.zeros(2)}, "1 tensors are unexpected, first model.extra"),
        ({f"{LAYER}.weight": torch.zeros(48, 32)}, "unexpected"),
        ({f"{LAYER}.weight_codes": torch.zeros(32, 48, dtype=torch.uint8)}, r"torch.uint8 \[48, 32\]"),
        ({f"{LAYER}.weight_codes": torch.zeros(48, 32)}, r"expected torch.uint8 \[48, 32\]"),
        ({f"{LAYER}.weight_codes": torch.zeros(48, 32, dtype=torch.int8)}, "torch.int8"),
        ({f"{LAYER}.weight_scale": torch.ones(1)}, r"expected float \[\]"),
        ({"lm_head.weight": torch.zeros(64, 32, dtype=torch.int32)}, r"expected float \[64, 32\]"),
        ({"lm_head.weight": torch.zeros(63, 32)}, r"expected float \[64, 32\]"),
        ({f"{LAYER}.weight_scale": torch.ones((), dtype=torch.float16)}, "not a finite float32 above zero"),
        *(
            ({f"{LAYER}.{part}": torch.tensor(value)}, "not a finite float32 above zero")
            for part in ("weight_scale", "input_scale")
            for value in (float("nan"), float("inf"), -1.0, 0.0)
        ),
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(changes, words, copy):
    change_tensors(copy, **changes)
    unloadable(copy, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": []}, "layers must be named"),
        ({"layers": [LAYER, LAYER]}, "layers must be named"),
        ({"layers": ["model.layers.9.mlp.gate_proj"]}, "no layer model.layers.9.mlp.gate_proj"),
        ({"layers": [""]}, "not a plain linear"),
        ({"layers": ["model.norm"]}, "not a plain linear"),
        ({"layers": [LAYER]}, "missing"),
        ({"layers": "all"}, "layers: Input should be a valid list"),
        ({"input_scale": "current"}, "contradicts max_window"),
        ({"attn_implementation": "kernels-community/flash-attn"}, "attn_implementation: Input should be"),
        ({"novelty": 1}, "novelty: Extra inputs"),
        ({"quantization": {"amax_compute_algo": "median"}}, "amax_compute_algo"),
        ({"model": {}}, "no model can be built"),
        ({"model": {"model_type": "rnn-t"}}, "no model can be built"),
        ({"model": {"model_type": "gpt2"}}, "only Llama-like"),
        ({"model": {"model_type": "llama", "hidden_size": "wide"}}, "no model can be built"),
    ],
    ids=str,
)
def test_configurations_that_make_no_sense_are_refused(changes, words, copy):
    change_config(copy, **changes)
    unloadable(copy, words)


def test_code_that_a_configuration_names_is_not_run(copy, monkeypatch):
    monkeypatch.setattr(
        "transformers.models.auto.auto_factory.get_class_from_dynamic_module",
        lambda *a, **k: pytest.fail("remote code"),
    )
    values = json.loads((copy / CONFIG_FILE).read_text())["model"]
    change_config(copy, model=values | {"auto_map": {"AutoModelForCausalLM": "evil/repo--modeling.Evil"}})
    assert torch.equal(logits(load_hif8(copy)), logits(frozen_llama()))


# ---- the tokenizer -------------------------------------------------------------------------------------


def test_a_tokenizer_travels_along(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer

    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", eos_token="?")
    export_hif8(frozen_llama(), tmp_path / "out", tokenizer=tokenizer)
    again = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert again("a b c").input_ids == [0, 1, 2]
    load_hif8(tmp_path / "out")
