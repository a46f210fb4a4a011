from numalab.agent.drivers.numactl import parse, parse_hardware, parse_show  # noqa
