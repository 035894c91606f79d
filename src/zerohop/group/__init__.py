"""Ranks of one program: how they find each other, whoever started them."""

from zerohop.group.completions import CompletionList, Counter, Ended, Handler, Synchronizer
from zerohop.group.group import Group
from zerohop.group.messages import Arrival, Message
from zerohop.group.posting import Posted, State
from zerohop.group.stores import FolderStore, Store

__all__ = [
    "Arrival",
    "CompletionList",
    "Counter",
    "Ended",
    "FolderStore",
    "Group",
    "Handler",
    "Message",
    "Posted",
    "State",
    "Store",
    "Synchronizer",
]
