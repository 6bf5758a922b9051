//go:build dpdk

package cmd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/refimpl/dpdkx"
	"github.com/metaroce/metaroce/refimpl/wire"
	"github.com/yerden/go-dpdk/eal"
)

// How much memory is asked for where there are no huge pages, and for each NIC more that shares the ports.
const (
	noHugeMB   = 256
	moreHugeMB = 128
)

// ealArgs completes the arguments that the user gave: what is not said is chosen so that a first try works, and told.
// name is one that no other daemon of this machine has.
func ealArgs(user []string, name string, wires []string, shards int, note func(string, ...any)) (args []string, cores []int, err error) {
	args = append([]string{"mroce-dpdk"}, user...)
	if list := value(user, "-l", "--lcores", "-c", "-S"); list == "" {
		cpu, err := firstCPU()
		if err != nil {
			return nil, nil, err
		}
		args = append(args, "-l", strconv.Itoa(cpu)) // EAL's own thread, which sleeps; the loops go where there is room
	} else if cores, err = coresOf(value(user, "-l")); err != nil {
		return nil, nil, err
	}
	if !has(user, "--no-huge", "--in-memory", "--huge-dir", "--socket-mem", "-m", "--legacy-mem") {
		mb := noHugeMB + (shards-1)*moreHugeMB
		if freeHugePages() > 0 {
			args = append(args, "--in-memory")
		} else {
			args = append(args, "--no-huge", "-m", strconv.Itoa(mb))
			note("no huge pages here: ordinary memory (--no-huge -m %d); docs/refimpl.md says how to have them", mb)
		}
	}
	if !has(args, "--file-prefix") && !has(args, "--in-memory") {
		args = append(args, "--file-prefix", "mroce-"+name)
	}
	if !has(user, "--no-pci", "-a", "--allow", "-b", "--block") && !slices.ContainsFunc(wires, wire.IsPCI) {
		args = append(args, "--no-pci")
	}
	if !has(user, "--telemetry", "--no-telemetry") {
		args = append(args, "--no-telemetry")
	}
	return args, cores, nil
}

// ealHelp prints what DPDK says of its arguments, where they ask for that. EAL would print it and end the daemon.
func ealHelp(user []string) bool {
	i := slices.IndexFunc(user, func(a string) bool { return a == "-h" || a == "--help" || a == "--log-level=help" })
	if i < 0 {
		return false
	}
	_, err := eal.Init([]string{"mroce-dpdk", user[i]})
	dpdkx.FlushC()
	return errors.Is(err, eal.ErrExit)
}

// has reports whether one of the names is among the arguments, alone, with =VALUE or with the value at once (-m512).
func has(args []string, names ...string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return slices.ContainsFunc(names, func(n string) bool {
			return a == n || strings.HasPrefix(a, n+"=") || len(n) == 2 && strings.HasPrefix(a, n) && !strings.HasPrefix(a, "--")
		})
	})
}

// value is what the first of the names is given, or "".
func value(args []string, names ...string) string {
	for i, a := range args {
		for _, n := range names {
			switch {
			case a == n && i+1 < len(args):
				return args[i+1]
			case strings.HasPrefix(a, n+"="):
				return strings.TrimPrefix(a, n+"=")
			case len(n) == 2 && strings.HasPrefix(a, n) && !strings.HasPrefix(a, "--") && len(a) > 2:
				return a[2:]
			}
		}
	}
	return ""
}

// coresOf reads -l: 2 or 2,3 or 4-7. Other ways to name lcores, and what is more than a list, bind nothing of ours.
func coresOf(list string) (cores []int, err error) {
	if list == "" || strings.ContainsAny(list, "@()") {
		return nil, nil
	}
	for _, part := range strings.Split(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.Atoi(from)
		b, errB := strconv.Atoi(to)
		if errA != nil || errB != nil || a < 0 || b < a || b > maxCPU {
			return nil, fmt.Errorf("-l %s: a list of cores such as 2 or 2,3 or 4-7", list)
		}
		for ; a <= b; a++ {
			cores = append(cores, a)
		}
	}
	return cores, nil
}

const maxCPU = 1<<16 - 1

// firstCPU is the first core that this process may use.
func firstCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, err
	}
	for i := range 8 * len(set) * 8 {
		if set.IsSet(i) {
			return i, nil
		}
	}
	return 0, nil
}

// freeHugePages counts those of the size that the system prefers.
func freeHugePages() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "HugePages_Free:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(rest))
			return n
		}
	}
	return 0
}
