"""Ranks of one program: how they find each other, whoever started them."""

from zerohop.group.collectives.explaining import CollectiveExplanation
from zerohop.group.completion import Completion, Ended
from zerohop.group.completions import CompletionList, Counter, Synchronizer
from zerohop.group.graph import Graph, Node
from zerohop.group.group import Group
from zerohop.group.handler import Handler
from zerohop.group.messages import Arrival, Message
from zerohop.group.posting import Posted, State
from zerohop.group.stores import FolderStore, Store

__all__ = [
    "Arrival",
    "CollectiveExplanation",
    "Completion",
    "CompletionList",
    "Counter",
    "Ended",
    "FolderStore",
    "Graph",
    "Group",
    "Handler",
    "Message",
    "Node",
    "Posted",
    "State",
    "Store",
    "Synchronizer",
]
