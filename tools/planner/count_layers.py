# SPDX-License-Identifier: MIT
"""Counts the parameters of models, layer by layer, as transformers makes them on PyTorch's meta
device, where tensors have shapes but no numbers. It reads no weights, and runs no code from a hub.

It reads a JSON list of config.json objects from stdin. The last line on stdout is a list, for each
of them what counted() returns, or {"error": why}. Exit code 77: torch or transformers is missing.
The planner runs this in a process of its own, in any Python that has both."""
import json
import sys
from itertools import groupby

try:
    import torch
    import transformers
    from torch.nn import ModuleDict, ModuleList
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
except ImportError:
    sys.exit(77)

# Keys that change no shape, and may need packages: how weights are stored, which kernels run.
SHAPELESS = ("quantization_config", "attn_implementation", "_attn_implementation")
# Tasks to try, in this order, if `architectures` names no class of transformers.
OTHERWISE = ("FOR_CAUSAL_LM_", "FOR_PRETRAINING_", "FOR_IMAGE_TEXT_TO_TEXT_", "")


def shapes(values):
    """Returns the configuration without SHAPELESS keys, also without those in its sections."""
    return {key: shapes(value) if isinstance(value, dict) else value
            for key, value in values.items() if key not in SHAPELESS}


def class_of(config, asked):
    """Returns the class `asked`, or the class for the first of OTHERWISE's tasks, that takes the
    whole configuration (a class for text may take a part); else the family's causal LM."""
    mapped = [getattr(modeling_auto, f"MODEL_{task}MAPPING").get(type(config), None)
              for task in OTHERWISE]
    return next((model for model in (getattr(transformers, str(asked), None), *mapped)
                 if isinstance(model, type) and issubclass(model, transformers.PreTrainedModel)
                 and isinstance(config, model.config_class or ())), mapped[0])


def outermost(model, chosen):
    """Returns the names of modules that chosen(name, module) takes, without those inside others."""
    names = []
    for name, module in model.named_modules():
        if chosen(name, module) and not (names and name.startswith(names[-1] + ".")):
            names.append(name)
    return names


def sizes(model):
    """Returns each layer's parameters. A module in a ModuleList (a decoder's block) is a layer; so
    is all before, between or after lists. A parameter of several layers counts in the first."""
    lists = outermost(model, lambda _, module: isinstance(module, ModuleList))

    def layer(named):
        name, _ = named
        around = next((list_name for list_name in lists if name.startswith(list_name + ".")), None)
        return around and (around, name[len(around) + 1:].partition(".")[0])

    return [sum(parameter.numel() for _, parameter in parameters)
            for _, parameters in groupby(model.named_parameters(), layer)]


def number(names, *modules):
    """Returns the first int among the modules' attributes of these names, else 0."""
    return next((value for module in modules for name in names
                 if type(value := getattr(module, name, None)) is int), 0)


def idle(model, text):
    """Returns how many parameters belong to experts that a token does not pass through. Experts are
    modules in a list, or slices of one tensor. The router beside them says how many a token passes.
    text: the configuration of the model's text part."""
    count = 0
    for name in outermost(model, lambda name, module: "shared" not in name and (
            name.endswith(".experts") or type(module).__name__.endswith("Experts"))):
        module, above = map(model.get_submodule, (name, name.rpartition(".")[0]))
        size = sum(parameter.numel() for parameter in module.parameters())
        counted_in = (["num_experts", "moe_num_experts"], module, *module.children(), text)
        experts = len(module) if isinstance(module, (ModuleList, ModuleDict)) else (
            number(*counted_in) or next(module.parameters()).shape[0])
        taken = number(["top_k", "num_experts_per_tok", "num_experts_per_token"],
                       above, *above.children(), module, text) or experts
        count += size * max(0, experts - taken) / experts
    return round(count)


def counted(values):
    """Returns {"error": why} or, of a config.json's model, the class's name; each layer's
    parameters (embedding, blocks, last norm with the head); how many are `active` for a token; the
    shape, with None for unknown; whether it has a head over the vocabulary, and a tied one."""
    version = f"transformers {transformers.__version__}"
    if values["model_type"] not in CONFIG_MAPPING:
        return {"error": f"{version} does not know it"}
    config = CONFIG_MAPPING[values["model_type"]].from_dict(shapes(values))
    with torch.device("meta"):
        model = class_of(config, (values.get("architectures") or [None])[0])(config)
    try:
        text = config.get_text_config()
    except ValueError:  # the model has several text parts
        text = config
    hidden, blocks, heads, vocabulary = (getattr(text, key, None) for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"))
    if hidden not in (None, said := values.get("hidden_size") or hidden):
        return {"error": f"its hidden_size is {hidden} there, not the file's {said}"}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return {"name": type(model).__name__, "sizes": (layers := sizes(model)),
            "active": sum(layers) - idle(model, text), "blocks": blocks, "hidden": hidden,
            "heads": heads, "vocabulary": vocabulary, "head": head is not None,
            "tied": head is not None and head.weight is getattr(embedding, "weight", None),
            "notes": [f"counted by {version}"]}


def answer(values):
    try:
        return counted(values)
    except Exception as error:  # transformers raises many kinds for a wrong file
        why = " ".join(str(error).split()) or "nothing more is said"
        return {"error": f"transformers cannot make it ({type(error).__name__}: {why:.200})"}


if __name__ == "__main__":
    print("\n" + json.dumps([answer(values) for values in json.load(sys.stdin)]))
