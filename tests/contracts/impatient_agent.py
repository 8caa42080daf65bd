"""An agent that soon gives up looking for a controller; ranks of its jobs are as ever."""

from hydragnn_hpo.launching import agent

agent._GIVE_UP_SECONDS, agent._GIVE_UP_LEASES = 5.0, 3.0
agent.main()
