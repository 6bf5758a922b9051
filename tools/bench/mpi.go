package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// Ranks are two on each of two hosts. The MPI is Open MPI: MPICH 4.0's ranks often do not end over UCX's TCP.
const (
	ranks = 4
	mpi   = "openmpi"
)

// MPIResult is what build/bench-mpi.json holds: seconds of one collective operation, of each round.
type MPIResult struct {
	Time   string    `json:"time"`
	CPUs   int       `json:"cpus"`
	Kernel string    `json:"kernel"`
	Load   string    `json:"load"` // of the machine when it began: /proc/loadavg
	Wire   string    `json:"wire"`
	Planes int       `json:"planes"`
	Rows   []*MPIRow `json:"rows"`
}

// MPIRow is an operation with blocks of a size.
type MPIRow struct {
	Operation string    `json:"operation"`
	Bytes     int       `json:"bytes"`
	RC        []float64 `json:"rc_verbs_seconds"`
	TCP       []float64 `json:"tcp_seconds"`
	OfTCP     []float64 `json:"rc_verbs_of_tcp_ratio"` // times within a round
}

var mpiSizes = []int{8, 4096, 65536, 1 << 20, 16 << 20}

// runMPI measures collective operations over our NIC and over TCP on a veth between the same namespaces, both by UCX of the same mpirun.
func runMPI(bin, wire, out string, rounds int) error {
	load, _ := os.ReadFile("/proc/loadavg")
	r := &MPIResult{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(), Load: strings.TrimSpace(string(load)), Wire: wire, Planes: bed.Planes}
	for _, op := range []string{"all-reduce", "all-to-all"} {
		for _, size := range mpiSizes {
			r.Rows = append(r.Rows, &MPIRow{Operation: op, Bytes: size})
		}
	}
	err := inLab(bin, bed.Options{Wire: wire, Hosts: 2}, func(b *bed.Bed) error {
		program := filepath.Join(b.Dir(), "collectives")
		if err := bed.CompileMPI(mpi, "tests/clients/mpi/collectives.c", program); err != nil {
			return err
		}
		for i := range rounds {
			say("round %d of %d", i+1, rounds)
			for _, row := range r.Rows {
				if err := row.measure(b, program); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	printMPI(r)
	return saveJSON(out, r)
}

func (r *MPIRow) measure(b *bed.Bed, program string) error {
	rc, err := r.seconds(b, program, "UCX_TLS=rc_v,self", "UCX_NET_DEVICES=mr0:1")
	if err != nil {
		return err
	}
	tcp, err := r.seconds(b, program, "UCX_TLS=tcp,self", "UCX_NET_DEVICES="+bed.VethDevices)
	if err != nil {
		return err
	}
	r.RC, r.TCP, r.OfTCP = append(r.RC, rc), append(r.TCP, tcp), append(r.OfTCP, rc/tcp)
	return nil
}

// seconds runs the operation and returns what one takes.
func (r *MPIRow) seconds(b *bed.Bed, program string, env ...string) (float64, error) {
	// Ranks that wait give their core to others: there are more of them than cores. Without, TCP takes milliseconds for 8 bytes,
	// as UCX over TCP only spins; our library yields by itself.
	env = append(env, "OMPI_MCA_mpi_yield_when_idle=1")
	cmd, err := b.MPIRun(bed.MPI{Name: mpi, Ranks: ranks, Env: env}, program, "time", r.Operation, strconv.Itoa(r.Bytes), "0.5")
	if err != nil {
		return 0, err
	}
	said, err := b.On(120*time.Second, "a", cmd...)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == r.Operation {
			return strconv.ParseFloat(f[2], 64)
		}
	}
	return 0, fmt.Errorf("%s printed no figure:\n%s", strings.Join(cmd, " "), said)
}

func printMPI(r *MPIResult) {
	fmt.Printf("%d CPUs, Linux %s, load %s at the beginning; %s wires, %d planes; %d ranks on 2 hosts; %d rounds: median (lowest to highest)\n\n",
		r.CPUs, r.Kernel, r.Load, r.Wire, r.Planes, ranks, len(r.Rows[0].RC))
	fmt.Println("| Open MPI, 4 ranks | bytes | rc_verbs µs | TCP on veth µs | of TCP's time |\n|---|---|---|---|---|")
	for _, x := range r.Rows {
		digits := 0
		if x.Bytes < 65536 {
			digits = 1
		}
		fmt.Printf("| %s | %d | %s | %s | %s |\n", x.Operation, x.Bytes, spread(x.RC, 1e6, digits), spread(x.TCP, 1e6, digits), spread(x.OfTCP, 1, 2))
	}
}

func saveJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
