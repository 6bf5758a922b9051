// Command bench measures the stack beside TCP on the same machine, in one run, so that the ratios mean something where the
// figures themselves depend on the machine: ib_write_bw over TAP wires and four planes against iperf3 over a veth between the
// same two namespaces, throughput kept under loss, and latencies against a TCP ping-pong. Everything is measured in several
// rounds, one after the other, and the ratios are taken within a round: a shared machine changes its speed within seconds.
//
//	go run ./tools/bench [-bin build/bin/nicemu] [-o build/bench.json] [-rounds 3] [-seconds 3]
//	go run ./tools/bench -mpi [-rounds 3]
//	go run ./tools/bench -dpdk [-rounds 3]
//	go run ./tools/bench -rccl [-rounds 3]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

const defaultOut = "build/bench.json"

func main() {
	bin := flag.String("bin", "build/bin/nicemu", "the nicemu to measure")
	out := flag.String("o", defaultOut, "where to write the figures")
	wire := flag.String("wire", "tap", "wire of the planes")
	seconds := flag.Int("seconds", 3, "of each bandwidth run")
	rounds := flag.Int("rounds", 3, "how often everything is measured")
	collectives := flag.Bool("mpi", false, "measure collective operations of MPI instead, over our NIC and over TCP; into build/bench-mpi.json")
	plugin := flag.Bool("rccl", false, "measure collectives through the plugin of RCCL and NCCL, and through TCP sockets; into build/bench-rccl.json")
	dpdk := flag.Bool("dpdk", false, "measure the reference implementation on DPDK instead, beside nicemu, TCP and bare memif; into build/bench-dpdk.json")
	pong := flag.String("pong", "", "internal: TCP ping-pong, server :PORT or client HOST:PORT")
	flag.Parse()
	if *pong != "" {
		exit(tcpPong(*pong))
	}
	if *collectives {
		if *out == defaultOut {
			*out = "build/bench-mpi.json"
		}
		exit(runMPI(*bin, *wire, *out, *rounds))
	}
	if *plugin {
		if *out == defaultOut {
			*out = "build/bench-rccl.json"
		}
		exit(runRCCL(*bin, *wire, *out, *rounds))
	}
	if *dpdk {
		if *out == defaultOut {
			*out = "build/bench-dpdk.json"
		}
		exit(runDPDK(*bin, *out, *rounds, *seconds))
	}
	exit(run(*bin, *wire, *out, *rounds, *seconds))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Result is what build/bench.json holds. Rates are bits a second, times seconds; each value is of a round.
type Result struct {
	Time      string               `json:"time"`
	CPUs      int                  `json:"cpus"`
	Kernel    string               `json:"kernel"`
	Wire      string               `json:"wire"`
	Planes    int                  `json:"planes"`
	Seconds   int                  `json:"seconds"`
	TCPBits   []float64            `json:"tcp_bits_per_second"`
	WriteBits map[string][]float64 `json:"write_bits_per_second"` // by message size
	OfTCP     map[string][]float64 `json:"write_of_tcp_ratio"`    // by message size
	LossKept  map[string][]float64 `json:"loss_kept_ratio"`       // by loss; 1 MiB messages, of the rate without loss
	RatedKept map[string][]float64 `json:"rated_loss_kept_ratio"` // the same with planes of a rate below the machine's speed
	RatedBits []float64            `json:"rated_bits_per_second"` // without loss
	Latency   map[string][]Latency `json:"latency_seconds"`
}

const planeRate = "rate=500Mbit" // four of them are well below what a core moves

// Latency is of half a round trip.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func run(bin, wire, out string, rounds, seconds int) error {
	r := &Result{
		Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(), Wire: wire, Planes: bed.Planes,
		Seconds: seconds, WriteBits: map[string][]float64{}, OfTCP: map[string][]float64{},
		LossKept: map[string][]float64{}, RatedKept: map[string][]float64{}, Latency: map[string][]Latency{},
	}
	err := inLab(bin, bed.Options{Wire: wire, Hosts: 2}, func(b *bed.Bed) error {
		for i := range rounds {
			say("round %d of %d", i+1, rounds)
			if err := measure(b, r, seconds); err != nil {
				return err
			}
		}
		return nil
	})
	print(r)
	return errors.Join(err, saveJSON(out, r))
}

// inLab measures in a lab, of which nothing stays, whoever ends us.
func inLab(bin string, o bed.Options, measure func(*bed.Bed) error) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	b, err := bed.New(bin, o)
	if err != nil {
		return err
	}
	var stopped atomic.Bool
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		stopped.Store(true)
		b.Close()
		os.Exit(130)
	}()
	err = measure(b)
	if stopped.Load() {
		select {} // no figures; the lab is being taken down
	}
	b.Close()
	return errors.Join(err, b.Failure)
}

var losses = []struct {
	name  string
	limit float64
}{{"0.1%", 0.999}, {"1%", 0.99}, {"5%", 0.95}, {"10%", 0.90}}

var sizes = []string{"65536", "1048576"}

// measure is one round.
func measure(b *bed.Bed, r *Result, seconds int) error {
	tcp, err := b.TCP(seconds)
	if err != nil {
		return err
	}
	r.TCPBits = append(r.TCPBits, tcp)
	var plain float64
	for _, size := range sizes {
		if plain, err = write(b, size, seconds); err != nil {
			return err
		}
		r.WriteBits[size] = append(r.WriteBits[size], plain)
		r.OfTCP[size] = append(r.OfTCP[size], plain/tcp)
	}
	if err = lossy(b, r.LossKept, plain, seconds); err != nil {
		return err
	}
	if err = b.Nicemu("lab", "impair", planeRate); err != nil {
		return err
	}
	rated, err := write(b, "1048576", seconds)
	if err != nil {
		return err
	}
	r.RatedBits = append(r.RatedBits, rated)
	if err = lossy(b, r.RatedKept, rated, seconds); err != nil {
		return err
	}
	if err = b.Nicemu("lab", "impair", "clear"); err != nil {
		return err
	}
	return latencies(b, r)
}

// lossy measures with each loss, leaves the planes without, and notes the share of plain.
func lossy(b *bed.Bed, kept map[string][]float64, plain float64, seconds int) error {
	for _, loss := range losses {
		if err := b.Nicemu("lab", "impair", "loss="+loss.name); err != nil {
			return err
		}
		bits, err := write(b, "1048576", seconds)
		if err != nil {
			return err
		}
		kept[loss.name] = append(kept[loss.name], bits/plain)
	}
	return b.Nicemu("lab", "impair", "loss=0")
}

func latencies(b *bed.Bed, r *Result) error {
	for _, program := range []string{"ib_write_lat", "ib_send_lat", "tcp"} {
		measure := func() (Latency, error) { return latency(b, program) }
		if program == "tcp" {
			measure = func() (Latency, error) { return pong(b) }
		}
		l, err := measure()
		if err != nil {
			return err
		}
		r.Latency[program] = append(r.Latency[program], l)
	}
	return nil
}

// write returns ib_write_bw's average, in bits a second.
func write(b *bed.Bed, size string, seconds int) (float64, error) {
	v, err := b.Perftest(time.Duration(seconds+20)*time.Second, "ib_write_bw", "-s", size, "-D", strconv.Itoa(seconds), "--report_gbits")
	if err != nil {
		return 0, err
	}
	return v[3] * 1e9, nil // bytes, iterations, peak, average
}

func latency(b *bed.Bed, program string) (Latency, error) {
	v, err := b.Perftest(60*time.Second, program, "-s", "8", "-n", "20000")
	if err != nil {
		return Latency{}, err
	}
	if len(v) < 8 {
		return Latency{}, fmt.Errorf("%s: unknown table %v", program, v)
	}
	return Latency{v[4] / 1e6, v[7] / 1e6}, nil // bytes, iterations, min, max, typical, average, stdev, p99
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func print(r *Result) {
	fmt.Printf("%d CPUs, Linux %s, %s wires, %d planes; %d rounds of %d s: median (lowest to highest)\n\n",
		r.CPUs, r.Kernel, r.Wire, r.Planes, len(r.TCPBits), r.Seconds)
	line := func(name, a, b string) { fmt.Printf("%-36s %24s %24s\n", name, a, b) }
	line("throughput", "Gbit/s", "of TCP")
	line("iperf3 TCP over veth", spread(r.TCPBits, 1e-9, 2), "1")
	for _, size := range sizes {
		line("ib_write_bw -s "+size, spread(r.WriteBits[size], 1e-9, 2), spread(r.OfTCP[size], 1, 2))
	}
	fmt.Println()
	line("kept at a loss of", "as fast as it goes", "planes of "+strings.TrimPrefix(planeRate, "rate="))
	for _, l := range losses {
		line(fmt.Sprintf("%-6s (limit %.3f)", l.name, l.limit), spread(r.LossKept[l.name], 1, 3), spread(r.RatedKept[l.name], 1, 3))
	}
	line("without loss, Gbit/s", spread(r.WriteBits["1048576"], 1e-9, 2), spread(r.RatedBits, 1e-9, 2))
	fmt.Println()
	line("8 B, half a round trip", "p50 µs", "p99 µs")
	for _, p := range []string{"ib_write_lat", "ib_send_lat", "tcp"} {
		var p50, p99 []float64
		for _, l := range r.Latency[p] {
			p50, p99 = append(p50, l.P50), append(p99, l.P99)
		}
		line(p, spread(p50, 1e6, 1), spread(p99, 1e6, 1))
	}
}

// spread prints median, lowest and highest.
func spread(v []float64, unit float64, digits int) string {
	if len(v) == 0 {
		return "-"
	}
	v = slices.Sorted(slices.Values(v))
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, v[len(v)/2]*unit, digits, v[0]*unit, digits, v[len(v)-1]*unit)
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(text))
}
