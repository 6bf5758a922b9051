package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

func libCheck(o Options) Check {
	if o.LibErr != nil {
		return Check{"our libibverbs.so.1", No, o.LibErr.Error(), "make"}
	}
	return Check{"our libibverbs.so.1", OK, o.LibDir, ""}
}

// conflictCheck looks for another libibverbs that a program would load before ours.
func conflictCheck(ours string) Check {
	c := Check{Name: "conflicting libibverbs", State: OK, Detail: "none comes before ours"}
	if p := os.Getenv("LD_PRELOAD"); strings.Contains(p, "libibverbs") {
		c.State, c.Detail, c.Fix = No, "LD_PRELOAD="+p+" wins over every path", "unset LD_PRELOAD"
		return c
	}
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if dir == ours {
			break
		}
		if _, err := os.Stat(filepath.Join(dir, "libibverbs.so.1")); err == nil {
			c.State, c.Detail = Limited, dir+" in LD_LIBRARY_PATH has one; `nicemu run` puts ours first, `nicemu env` as well"
			return c
		}
	}
	return c
}

func hardwareCheck() Check {
	entries, _ := os.ReadDir("/sys/class/infiniband")
	if len(entries) == 0 {
		return Check{"RDMA hardware", OK, "none here; nothing to confuse the emulated NIC with", ""}
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return Check{"RDMA hardware", Limited, strings.Join(names, ", ") + " is a real NIC; programs started by `nicemu run` see the emulated ones only", ""}
}

// programs people try first, by Debian package.
var programs = []struct {
	pkg   string
	names []string
}{
	{"ibverbs-utils", []string{"ibv_devinfo", "ibv_rc_pingpong"}},
	{"perftest", []string{"ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw", "ib_write_lat"}},
}

func programChecks() []Check {
	var all []Check
	for _, p := range programs {
		c := Check{Name: p.pkg, State: OK}
		var missing []string
		for _, n := range p.names {
			if _, err := exec.LookPath(n); err != nil {
				missing = append(missing, n)
			}
		}
		switch {
		case len(missing) == 0:
			c.Detail = strings.Join(p.names, ", ")
		default:
			c.State, c.Detail, c.Fix = No, "missing: "+strings.Join(missing, ", "), "sudo apt-get install "+p.pkg
			if len(missing) < len(p.names) {
				c.State = Limited
			}
		}
		all = append(all, c)
	}
	return all
}

func coresCheck() Check {
	n := runtime.NumCPU()
	c := Check{Name: "processor cores", State: OK, Detail: fmt.Sprint(n)}
	if n < 3 {
		c.State = Limited
		c.Detail += "; two programs and the daemon share them, so latencies have a long tail"
	}
	return c
}

func dpdkCheck() Check {
	if _, err := exec.LookPath("mroce-dpdk"); err == nil {
		return Check{"DPDK", OK, "mroce-dpdk is installed", ""}
	}
	return Check{"DPDK", No, "mroce-dpdk, the same NIC on DPDK ports, is not installed; nicemu does not need it", ""}
}
