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
			"ranks, and the NICs' counters say that at least the bytes that had to move went through them. " +
			"Debian's BTL openib connects by LID only (udcm), as only InfiniBand has them.",
	}
	for _, m := range bed.MPIs {
		for _, tr := range ucxTransports {
			for _, op := range []string{"all-reduce", "all-to-all", "all-gather", "reduce-scatter", "broadcast"} {
				s.rows = append(s.rows, row{
					program: "mpirun." + m, feature: "4 ranks, " + tr.name + ": " + op, net: lossy,
					smoke: tr.name == "rc_verbs" && op == "all-to-all",
					run:   func(l *lab) error { return l.collective(overUCX(m, 4, tr.tls), op) },
				})
			}
		}
		s.rows = append(s.rows, row{program: "mpirun." + m, feature: "2 ranks, rc_verbs: all-reduce", net: lossy,
			run: func(l *lab) error { return l.collective(overUCX(m, 2, "rc_v"), "all-reduce") }})
	}
	add := func(feature, none string, m bed.MPI) {
		s.rows = append(s.rows, row{program: "mpirun." + m.Name, feature: feature, net: lossy, none: none, run: func(l *lab) error { return l.collective(m, "all-to-all") }})
	}
	add("4 ranks, whatever UCX chooses: all-to-all", "", bed.MPI{Name: "openmpi", Ranks: 4})
	add("4 ranks, libfabric's verbs;ofi_rxm: all-to-all", "", bed.MPI{Name: "openmpi", Ranks: 4,
		Over: words("--mca", "pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm")})
	add("2 ranks, BTL openib: all-to-all", "No OpenFabrics connection schemes", bed.MPI{Name: "openmpi", Ranks: 2,
		Over: words("--mca", "pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1")})
	return s
}

// overUCX allows one transport of UCX.
func overUCX(m string, ranks int, tls string) bed.MPI {
	return bed.MPI{Name: m, Ranks: ranks, Env: []string{"UCX_TLS=" + tls + ",self", "UCX_NET_DEVICES=mr0:1"}}
}

func (l *lab) collective(m bed.MPI, op string) error {
	program := filepath.Join(l.Dir(), "collectives."+m.Name)
	if err := bed.CompileMPI(m.Name, "mpi/collectives.c", program); err != nil {
		return err
	}
	cmd, err := l.MPIRun(m, program, "check", op)
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
	if err := ucxQuiet(out, moved(out, before, after, m.Env != nil)); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

var must = regexp.MustCompile(`(?m)^(out (\w+)|between) (\d+)$`)

// moved compares what had to move, as the program reckons it, with what the NICs counted: between the hosts, and, where shared
// memory is forbidden, between the ranks.
func moved(out string, before, after map[string]counters, noSharedMemory bool) error {
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
		if f[2] == "" && !noSharedMemory {
			continue
		}
		if got < want {
			return fmt.Errorf("%s bytes had to move, and the NICs counted %d: something went another way", f[0], got)
		}
	}
	return nil
}
