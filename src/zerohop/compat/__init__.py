"""Offers other libraries' names on zerohop: code that was written for them changes one import."""
