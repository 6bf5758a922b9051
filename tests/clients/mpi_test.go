//go:build clients

package clients

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

func mpi() *suite {
	s := &suite{
		name: "MPI", packages: "openmpi-bin mpich libucx0", half: "b",
		about: "`tests/clients/mpi/collectives.c`: 8 B to 16 MiB a block, every byte checked; 4 ranks are 2 on each host. UCX is the only way between " +
			"ranks, and the NICs' counters say that at least the bytes that had to move went through them.",
	}
	for _, m := range bed.MPIs {
		for _, tr := range ucxTransports {
			for _, op := range []string{"all-reduce", "all-to-all", "all-gather", "reduce-scatter", "broadcast"} {
				s.rows = append(s.rows, row{
					program: "mpirun." + m, feature: "4 ranks, " + tr.name + ": " + op, net: lossy,
					smoke: tr.name == "rc_verbs" && op == "all-to-all",
					run:   func(l *lab) error { return l.collective(m, 4, tr.tls, op) },
				})
			}
		}
		s.rows = append(s.rows, row{program: "mpirun." + m, feature: "2 ranks, rc_verbs: all-reduce", net: lossy,
			run: func(l *lab) error { return l.collective(m, 2, "rc_v", "all-reduce") }})
	}
	return s
}

func (l *lab) collective(m string, ranks int, tls, op string) error {
	program := filepath.Join(l.Dir(), "collectives."+m)
	if err := bed.CompileMPI(m, "mpi/collectives.c", program); err != nil {
		return err
	}
	cmd, err := l.MPIRun(m, ranks, []string{"UCX_TLS=" + tls + ",self", "UCX_NET_DEVICES=mr0:1"}, program, "check", op)
	if err != nil {
		return err
	}
	before, err := l.counters()
	if err != nil {
		return err
	}
	out, err := l.one(150*time.Second, cmd...)
	if err != nil {
		return err
	}
	after, err := l.counters()
	if err != nil {
		return err
	}
	if err := ucxQuiet(out, moved(out, before, after)); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

var must = regexp.MustCompile(`(?m)^(out (\w+)|between) (\d+)$`)

// moved compares what had to move, as the program reckons it, with what the NICs counted.
func moved(out string, before, after map[string]counters) error {
	var all uint64
	for host, c := range after {
		all += c.Out - before[host].Out + c.Loop - before[host].Loop
	}
	found := must.FindAllStringSubmatch(out, -1)
	if len(found) != 3 { // two hosts, and all together
		return fmt.Errorf("no word of what had to move")
	}
	for _, f := range found {
		want, _ := strconv.ParseUint(f[3], 10, 64)
		got := all
		if f[2] != "" {
			got = after[f[2]].Out - before[f[2]].Out
		}
		if got < want {
			return fmt.Errorf("%s bytes had to move, and the NICs counted %d: something went another way", f[0], got)
		}
	}
	return nil
}
