"""What the tests of a restarted server serve: an agent on the embedded model."""

from headrace import Agent
from headrace.agent.app import App

app = App(Agent(name="small", instructions="Answer in a few words."))
