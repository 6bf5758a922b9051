//go:build dpdk

package cmd

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/refimpl/wire"
)

// noHugeMB is how much memory is asked for where there are no huge pages.
const noHugeMB = 256

// ealArgs completes the arguments that the user gave: what is not said is chosen so that a first try works, and told.
// name is one that no other daemon of this machine has.
func ealArgs(user []string, name string, wires []string, note func(string, ...any)) (args []string, core int, err error) {
	args = append([]string{"mroce-dpdk"}, user...)
	core = -1
	if list := value(user, "-l", "--lcores", "-c", "-S"); list == "" {
		cpu, err := firstCPU()
		if err != nil {
			return nil, 0, err
		}
		args = append(args, "-l", strconv.Itoa(cpu)) // EAL's own thread, which sleeps; the loop goes where there is room
	} else if core, err = firstCore(user); err != nil {
		return nil, 0, err
	}
	if !has(user, "--no-huge", "--in-memory", "--huge-dir", "--socket-mem", "-m", "--legacy-mem") {
		if freeHugePages() > 0 {
			args = append(args, "--in-memory")
		} else {
			args = append(args, "--no-huge", "-m", strconv.Itoa(noHugeMB))
			note("no huge pages here: ordinary memory (--no-huge -m %d); docs/refimpl.md says how to have them", noHugeMB)
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
	return args, core, nil
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

// firstCore is the core that the loop is bound to: the first of -l. Other ways to name lcores bind nothing of ours.
func firstCore(args []string) (int, error) {
	list := value(args, "-l")
	if list == "" {
		return -1, nil
	}
	digits := strings.IndexFunc(list, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(list)
	}
	cpu, err := strconv.Atoi(list[:digits])
	if err != nil {
		return 0, fmt.Errorf("-l %s: a list of cores such as 2 or 2,3", list)
	}
	return cpu, nil
}

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
