"""Ranks of one program: how they find each other, whoever started them."""

from zerohop.group.group import Group
from zerohop.group.messages import Message
from zerohop.group.stores import FolderStore, Store

__all__ = ["FolderStore", "Group", "Message", "Store"]
