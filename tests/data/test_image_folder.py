"""Folders as people have them: what is a class, what is a sample, what is refused."""

import os

import polars as pl
import pytest

from ratchet.errors import DataError

