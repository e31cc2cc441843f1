"""Processes for tests that kill them or let them meet: forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

__all__ = ["forkserver"]


def forkserver() -> ForkServerContext:
    """There is one server for all tests, so all must ask for the same modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tyro", "vpgcnn.nn", "vpgcnn.apps.commands.train", "vpgcnn.lab.training.loop"])
    return context
