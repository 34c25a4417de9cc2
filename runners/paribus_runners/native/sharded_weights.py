"""Weights, gradients and optimizer that the processes of a run share (ZeRO-3, arXiv 1910.02054, by PyTorch's FSDP2).

With ``compute.sharding: weights`` a process keeps a share of each weight, and AdamW steps it. In an update the weights
of a block are gathered before the block computes and freed behind it, and its gradient is summed over the processes as
soon as it is whole. Everywhere else all weights are whole in each process: a token that is sampled is one pass, and
weights cannot be gathered for each.

Each pass of an update gathers weights, so all processes must make as many; :mod:`.update` makes those that are missing
without tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paribus.errors import RunnerError
from paribus_runners.native.gradient_checkpointing import blocks_of
from paribus_runners.native.world import World

T = TypeVar("T", bound=tuple[Any, ...])


class ShardedWeights:
    """The weights of a network, of which each process keeps a share.

    They are sharded from here on; :meth:`gather` makes them whole.

    Args:
        model: a Transformers model, the same in all processes.
        world: these processes.
        dtype: type of the weights where they are whole; shares are float32.

    Attributes:
        whole: whether all weights are whole in each process now.
        narrow: whether the shares have more digits than the whole weights.

    Raises:
        RunnerError: the model has no blocks that could be gathered one by one, weights of several types, or some that
            blocks share.
    """

    def __init__(self, model: Any, world: World, dtype: torch.dtype) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        self._model, self.whole = model, False
        self.narrow = dtype.itemsize < 4
        self._state = [*model.state_dict()]
        if others := sorted({str(w.dtype).removeprefix("torch.") for w in model.parameters() if w.dtype != dtype}):
            raise RunnerError(
                f"`compute.sharding: weights`: {type(model).__name__} keeps some weights in {', '.join(others)}, and "
                "here all have one type: set `model.trained_dtype: float32`, or `sharding: optimizer`"
            )
        device = next(model.parameters()).device
        blocks: list[Any] = blocks_of(model, "compute.sharding")
        self._parts: list[Any] = [model, *blocks]
        mesh = init_device_mesh(device.type, (world.size,))
        policy = MixedPrecisionPolicy(
            param_dtype=dtype if self.narrow else None, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for part in reversed(self._parts):  # the model last: it takes what the blocks leave
            for weight in part.parameters():
                if weight.requires_grad and weight.dtype != torch.float32:
                    weight.data = weight.data.float()
            with _refused(model):
                fully_shard(part, mesh=mesh, mp_policy=policy)
            part.set_custom_all_gather(_Gather(world))
            part.set_custom_reduce_scatter(_Sum(world))
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        for before, block in pairwise(self._parts):
            # named here, since else the order of passes without gradient, which processes do not share, would decide
            block.set_modules_to_backward_prefetch([before])
        model.set_reduce_scatter_unused_params(True)  # all processes must sum the same gradients
        model.paribus_pass = _pass
        register_fsdp_forward_method(model, "paribus_pass")
        with _refused(model):
            self.run(tuple)  # the first to make a pass counts as the whole of the network
        model.reshard()

    def run(self, action: Callable[[], T]) -> T:
        """Return the tensors that ``action`` does, which is one pass; all processes must make it.

        Weights are gathered for it. A backward pass may begin with these tensors alone.
        """
        found: T = action() if self.whole else self._model.paribus_pass(action)
        return found

    def gather(self) -> None:
        """Make all weights whole in each process; all must call."""
        for part in self._parts:
            part.unshard()
        self._keep(True)

    @contextmanager
    def sharded(self) -> Iterator[None]:
        """Have each process keep its share alone for the duration; all must call. After an error it stays so."""
        self._keep(False)
        self._model.reset_iter_state()  # frees what is whole, and forgets the passes without gradient
        yield
        self.gather()

    def _keep(self, whole: bool) -> None:
        self.whole = whole
        for block in self._parts[1:]:
            block.set_reshard_after_forward(not whole)

    def state(self) -> dict[str, Tensor]:
        """Return all whole weights and buffers under their names, as ``model.state_dict()`` would without sharding."""
        assert self.whole
        tensors = dict(self._model.named_parameters(remove_duplicate=False))
        tensors |= dict(self._model.named_buffers(remove_duplicate=False))
        return {name: tensors[name].detach() for name in self._state}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over whole weights and buffers; all processes must call.

        Raises:
            KeyError: one is missing.
            RuntimeError: one has another shape.
        """
        with self.sharded():
            for name, buffer in self._model.named_buffers():
                if name in self._state:
                    buffer.copy_(state[name])
            for name, weight in self._model.named_parameters():
                own, first = own_part(weight), first_of(weight)
                if state[name].shape != weight.shape:
                    raise RuntimeError(f"{name} has the shape {tuple(state[name].shape)}, not {tuple(weight.shape)}")
                own.view(-1).copy_(state[name].reshape(-1)[first : first + own.numel()])


def first_of(weight: Tensor) -> int:
    """Return the place of the first number of a weight that is in this process.

    FSDP2 deals out rows, as many to each process, and fewer to the last ones.
    """
    mesh: Any = getattr(weight, "device_mesh", None)
    if mesh is None:
        return 0
    rank, rows = int(mesh.get_local_rank()), -(-weight.shape[0] // int(mesh.size()))
    return min(rank * rows, weight.shape[0]) * (weight.numel() // weight.shape[0])


def own_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is in this process, in the same memory; all of it unless it is sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


@contextmanager
def _refused(model: Any) -> Iterator[None]:
    """Raise the usual error where FSDP2 refuses a model."""
    try:
        yield
    except ValueError as error:
        name = type(model).__name__.removeprefix("FSDP")
        raise RunnerError(f"`compute.sharding: weights` cannot shard {name}: {error}") from error


def _pass(action: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Make a pass; FSDP2 attaches its hooks to the results, which views would lose."""
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in action())


class _Exchange:
    """What FSDP2 calls to exchange tensors: it waits as all of the run does, and so notices that the run must stop."""

    def __init__(self, world: World) -> None:
        self._finish = world.finish

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for a tensor."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        self._finish(dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=True))


class _Sum(_Exchange):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        if input_tensor.device.type == "cpu":  # Gloo only begins to add up when it is waited for
            self._finish(dist.all_reduce(input_tensor, op=op, group=group, async_op=True))
            output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])
            return
        # the device waits, not this process: it goes on to the next block, whose weights it then waits for
        dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)
