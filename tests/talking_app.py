"""What the instances behind nginx serve: an agent that takes a second to say sixty words."""

from headrace import Agent
from headrace.agent.app import App
from headrace.engine.scripted import ScriptedEngine

TEXT = "".join(f"word{number} " for number in range(60))

app = App(Agent(name="talker", instructions="Talk.", engine=ScriptedEngine(TEXT, rate=60.0)))
