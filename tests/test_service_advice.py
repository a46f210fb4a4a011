"""What a run of a service recommends, and that the lines to paste are what their readers take."""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

import service_frames
from frames import Cell
from numalab.agent.contract import to_json
from numalab.agent.errors import Fault
from numalab.agent.served.service import advice
from numalab.agent.served.service.description import Figure, Load, Prepare, Service
from numalab.analysis import recommendation
from numalab.analysis.paste import paste

SPLIT_ONLY = {"instances_nodes": 5210.0}


def of(run):
    return recommendation.of(run)


def places(run):
    return {place.where: place for place in of(run).paste}


def test_an_instance_per_node_is_recommended_and_the_gain_taken_apart():
    found = of(service_frames.run())
    assert found.cell == "instances:nodes" and found.says.startswith("Bind it: 2 instances")
    split, bind, direct = found.parts
    assert split.startswith("splitting without binding (2 instances, unbound): +30 %")
    assert bind.startswith("binding on top of it: +5") and "not disting" not in bind
    assert direct.startswith("against unbound, balancer=none: +8")
    assert any("must fit on its node (64.0 GiB on the smallest)" in cost for cost in found.costs)
    assert any(cost.startswith("2 servers share nothing") for cost in found.costs)


def test_where_splitting_is_the_gain_it_is_said():
    found = of(service_frames.run(service_frames.cells(**SPLIT_ONLY), noise=0.02))
    assert found.cell in ("instances:nodes", "instances:unbound")
    alike = [said for said in found.alike if "instances" in said]
    assert alike, "the other one cannot be told from it"
    if found.cell == "instances:nodes":
        assert "not distinguishable: the split is the gain" in found.parts[1]


def test_unbound_instances_are_called_a_split_and_have_no_line_that_binds():
    run = service_frames.run(service_frames.cells(instances_unbound=9000.0))
    found = of(run)
    assert found.cell == "instances:unbound" and found.says.startswith("Split it: ")
    pasted = "\n".join(line for place in found.paste for line in place.lines)
    for word in ("numactl", "NUMAPolicy", "CPUAffinity", "cpuset"):
        assert word not in pasted
    assert "portal@{1..2}" in pasted and "balance leastconn" in pasted
    assert not any("must fit" in cost for cost in found.costs)


def test_an_option_that_wins_is_set_by_its_command_line():
    cells = [c for c in service_frames.cells() if c.id != "unbound/use_numa=on"]
    cells += [replace(cells[0], id="unbound/use_numa=on", value=9500.0, role="cell",
                      baseline="unbound")]  # fmt: skip
    found = of(service_frames.run(cells))
    assert found.cell == "unbound/use_numa=on" and found.says.startswith("Set it: ")
    (line,) = found.paste
    assert line.where == "the command line" and line.lines == [
        "/usr/bin/portal -m 512 -N -s /run/portal/1/socket"
    ]


def test_to_do_without_the_balancer_is_never_the_recommendation():
    direct = [
        Cell("unbound/balancer=none", 9000.0, "unbound", cpus=None,
             memory={"policy": "default", "nodes": None}),
    ]  # fmt: skip
    planned = [c for c in service_frames.cells() if "balancer" not in c.id]
    planned += [service_frames.ServiceCell(**vars(direct[0]))]
    found = of(service_frames.run(planned))
    assert found.cell == "instances:nodes"
    assert found.parts[-1].startswith("against unbound, balancer=none: -")


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_where_no_binding_beats_the_default_nothing_is_pasted(factor):
    cells = [
        replace(cell, value=4000.0 * (1.0 if cell.named == "unbound" else factor))
        for cell in service_frames.cells()
    ]
    run = service_frames.run(cells)
    found = of(run)
    assert found.cell is None and found.paste == [] and found.parts == []
    assert "No binding" in found.says and "the default (unbound)" in found.says


# ---------------------------------------------------------------- the lines


def test_each_instance_has_its_own_lines():
    found = places(service_frames.run())
    assert found["numactl"].lines == [
        "GREETING='good day' numactl --physcpubind=0-7 --membind=0 "
        "/usr/bin/portal -m 512 -s /run/portal/1/socket",
        "GREETING='good day' numactl --physcpubind=8-15 --membind=1 "
        "/usr/bin/portal -m 512 -s /run/portal/2/socket",
    ]
    template = found["systemd: /etc/systemd/system/portal@.service"].lines
    assert "ExecStart=/usr/bin/portal -m 512 -s /run/portal/%i/socket" in template
    assert 'Environment="GREETING=good day"' in template
    own = found["systemd: a file for each instance, named by its first line"]
    assert own.lines[7:] == [
        "# /etc/systemd/system/portal@2.service.d/numa.conf",
        "[Service]", "CPUAffinity=", "CPUAffinity=8-15", "NUMAPolicy=bind", "NUMAMask=1",
    ]  # fmt: skip
    assert own.remarks == ["systemd 243 or newer"]


def test_compose_has_cpuset_and_says_what_it_lacks():
    place = places(service_frames.run())["docker: compose.yaml"]
    assert yaml.safe_load("\n".join(place.lines)) == {
        "services": {
            f"portal-{n + 1}": {
                "image": "IMAGE",
                "cpuset": cpus,
                "cap_add": ["SYS_NICE"],
                "command": f"numactl --membind={n} /usr/bin/portal -m 512 "
                f"-s /run/portal/{n + 1}/socket",
                "environment": ["GREETING=good day"],
            }
            for n, cpus in ((0, "0-7"), (1, "8-15"))
        }
    }
    assert "no key for the nodes of memory" in place.remarks[0]
    spread = service_frames.run(service_frames.cells(instances_spread=9000.0))
    place = places(spread)["docker: compose.yaml"]
    assert not any("cap_add" in line for line in place.lines) and place.remarks == []


def test_a_block_keeps_its_indentation_and_a_long_one_is_folded():
    said = recommendation.markdown(of(service_frames.run()))
    assert "\n  portal-1:\n    image: IMAGE\n" in said and "<details>" not in said
    many = recommendation.markdown(of(service_frames.run(nodes=16)))
    assert many.count("<details>") == many.count("</details>") == 2
    assert "NUMAMask=15" in many and "portal@{1..16}" in many


def test_haproxy_takes_the_lines(tmp_path):
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if not haproxy:
        pytest.skip("haproxy is not installed")
    place = places(service_frames.run())["HAProxy: haproxy.cfg"]
    config = tmp_path / "haproxy.cfg"
    rest = ["", "frontend www", "    mode http", "    bind 127.0.0.1:18080",
            "    default_backend portal", ""]  # fmt: skip
    config.write_text("\n".join([*place.lines, *rest]))
    done = subprocess.run([haproxy, "-c", "-f", config], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "unix@/run/portal/2/socket" in config.read_text()
    assert any("chroot" in remark for remark in place.remarks)


def test_systemd_takes_the_units(tmp_path):
    """It ignores what it cannot read with a warning: none may come."""
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("systemd-analyze is not installed")
    found = places(service_frames.run())
    template = found["systemd: /etc/systemd/system/portal@.service"].lines
    units = {"portal@.service": template}
    own = found["systemd: a file for each instance, named by its first line"].lines
    for line in own:
        if line.startswith("#"):
            name = line.removeprefix("# /etc/systemd/system/")
            units[name] = []
        else:
            units[name].append(line)
    for name, text in units.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        words = "\n".join(text).replace("User=portal\n", "").replace("/usr/bin/portal", "/bin/sh")
        (tmp_path / name).write_text(words + "\n")
    done = subprocess.run(
        [analyze, "verify", "--man=no", "portal@1.service", "portal@2.service"],
        capture_output=True, text=True, env={**os.environ, "SYSTEMD_UNIT_PATH": str(tmp_path)},
    )  # fmt: skip
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line] == []


# ---------------------------------------------------------------- a service on a port


def test_a_service_on_a_port_is_known_by_its_port():
    service = to_json(
        Service(
            name="store", here="~/x", says="a store", needs={"server": ("store",)},
            start="{server} -p {port} -d {datadir} -c {connections} 'a b' 50% $5",
            files={"store.conf": "x"}, prepare=Prepare(("make-store {datadir}",)),
            load=Load("command", command="ask", figures={"requests_per_second": Figure("TPS #")}),
        )
    )  # fmt: skip
    facts = {"service": service, "server": "store 1", "programs": {"server": "/usr/bin/store"}}
    tool = replace(service_frames.TOOL, facts=facts)
    options = {"service": service, "balancer": "none"}
    run = service_frames.run(options=options, tool=tool)
    cell = run.plan.cell["instances:nodes"]
    own = advice.of(tool, cell)
    assert own.first == 8081 and own.address == ""  # its load goes through no balancer
    found = {place.where: place for place in paste(tool, cell)}
    assert not any(where.startswith("HAProxy") for where in found)
    assert "-p 8082 -d /var/lib/store/8082 -c 64 'a b' 50% '$5'" in found["numactl"].lines[1]
    (start,) = [
        line for line in found["systemd: /etc/systemd/system/store@.service"].lines
        if line.startswith("ExecStart")
    ]  # fmt: skip
    assert "-p %i -d /var/lib/store/%i " in start and "50%%" in start and "'$$5'" in start
    assert "the command line" not in found
    remarks = [
        "as it was measured: your options, paths and data will differ",
        "/var/lib/store/%i holds what the service file puts there",
    ]
    assert found["numactl"].remarks == remarks
    template = found["systemd: /etc/systemd/system/store@.service"]
    assert template.remarks == [*remarks, "the user of User= must be there"]


def pasted(**changed):
    """The lines for an instance on each node of a store that differs so from the one above."""
    service = to_json(
        Service(
            name="store", here="~/x", says="a store", needs={"server": ("store",)},
            load=Load("http", request="/"), **changed,
        )
    )  # fmt: skip
    facts = {"service": service, "server": "store 1", "programs": {"server": "~/bin/store"}}
    tool = replace(service_frames.TOOL, facts=facts)
    run = service_frames.run(options={"service": service, "balancer": "none"}, tool=tool)
    return {one.where: one for one in paste(tool, run.plan.cell["instances:nodes"])}


def test_a_service_may_be_told_its_port_by_its_environment():
    found = pasted(start="{server}", environment={"PORT": "{port}"})
    assert found["numactl"].lines[1].startswith("PORT=8082 numactl ")
    template = found["systemd: /etc/systemd/system/store@.service"].lines
    assert 'Environment="PORT=%i"' in template
    assert "    server store-8082 127.0.0.1:8082" in found["HAProxy: haproxy.cfg"].lines
    compose = yaml.safe_load("\n".join(found["docker: compose.yaml"].lines))
    assert compose["services"]["store-8082"]["environment"] == ["PORT=8082"]


def test_a_program_of_the_home_folder_can_be_pasted_into_a_shell_and_systemd_is_told():
    found = pasted(start="{server} -s {socket}")
    assert " ~/bin/store -s " in found["numactl"].lines[0]  # a quoted ~ would be no home
    remarks = found["systemd: /etc/systemd/system/store@.service"].remarks
    assert "systemd knows no ~: write the whole path there" in remarks


def test_what_systemd_reads_otherwise_than_a_shell_is_escaped():
    found = pasted(start=r"sh -c 'a\.b $X; exec {server} {socket}'")
    lines = found["systemd: /etc/systemd/system/store@.service"].lines
    assert any(r"a\\.b $$X" in one for one in lines if one.startswith("ExecStart"))


def test_a_strangers_plan_without_the_service_is_a_fault_not_a_traceback():
    run = service_frames.run()
    tool = replace(service_frames.TOOL, facts={"server": "x"})
    with pytest.raises(Fault, match="does not say how service was started"):
        paste(tool, run.plan.cell["instances:nodes"])
