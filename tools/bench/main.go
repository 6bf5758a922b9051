// Command bench measures the stack beside TCP on the same machine, in one run, so that the ratios mean something where the
// figures themselves depend on the machine: ib_write_bw over TAP wires and four planes against iperf3 over a veth between the
// same two namespaces, throughput kept under loss, and latencies against a TCP ping-pong.
//
//	go run ./tools/bench [-bin build/bin/nicemu] [-o build/bench.json] [-seconds 5]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "build/bin/nicemu", "the nicemu to measure")
	out := flag.String("o", "build/bench.json", "where to write the figures")
	wire := flag.String("wire", "tap", "wire of the planes")
	seconds := flag.Int("seconds", 5, "of each bandwidth run")
	pong := flag.String("pong", "", "internal: TCP ping-pong, server :PORT or client HOST:PORT")
	flag.Parse()
	if *pong != "" {
		exit(tcpPong(*pong))
	}
	exit(run(*bin, *wire, *out, *seconds))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Result is what build/bench.json holds. Rates are bits a second, times seconds.
type Result struct {
	Time      string             `json:"time"`
	CPUs      int                `json:"cpus"`
	Kernel    string             `json:"kernel"`
	Wire      string             `json:"wire"`
	Planes    int                `json:"planes"`
	TCPBits   float64            `json:"tcp_bits_per_second"`
	WriteBits map[string]float64 `json:"write_bits_per_second"` // by message size
	LossKept  map[string]float64 `json:"loss_kept_ratio"`       // by loss; 1 MiB messages, of the rate without loss
	Latency   map[string]Latency `json:"latency_seconds"`
}

// Latency is of half a round trip.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func run(bin, wire, out string, seconds int) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	b, err := newBed(bin, wire)
	if err != nil {
		return err
	}
	defer b.close()
	var stopped atomic.Bool
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		stopped.Store(true)
		b.close() // nothing of the lab stays, whoever ends us
		os.Exit(130)
	}()
	r := &Result{
		Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(), Wire: wire, Planes: planes,
		WriteBits: map[string]float64{}, LossKept: map[string]float64{}, Latency: map[string]Latency{},
	}
	err = errors.Join(measure(b, r, seconds), b.failure)
	if stopped.Load() {
		select {} // no figures; the lab is being taken down
	}
	print(r)
	if e := save(out, r); e != nil {
		err = errors.Join(err, e)
	}
	return err
}

func measure(b *bed, r *Result, seconds int) (err error) {
	say("TCP over veth, %d s …", seconds)
	if r.TCPBits, err = b.tcp(seconds); err != nil {
		return err
	}
	for _, size := range []string{"65536", "1048576"} {
		say("ib_write_bw -s %s, %d s …", size, seconds)
		if r.WriteBits[size], err = b.write(size, seconds); err != nil {
			return err
		}
	}
	for _, loss := range []string{"0.1%", "1%", "5%", "10%"} {
		say("ib_write_bw -s 1048576 at %s loss, %d s …", loss, seconds)
		if err = b.nicemu("lab", "impair", "loss="+loss); err != nil {
			return err
		}
		bits, err := b.write("1048576", seconds)
		if err != nil {
			return err
		}
		r.LossKept[loss] = bits / r.WriteBits["1048576"]
	}
	if err = b.nicemu("lab", "impair", "loss=0"); err != nil {
		return err
	}
	for _, program := range []string{"ib_write_lat", "ib_send_lat"} {
		say("%s -s 8 …", program)
		if r.Latency[program], err = b.latency(program); err != nil {
			return err
		}
	}
	say("TCP ping-pong of 8 bytes …")
	r.Latency["tcp"], err = b.pong()
	return err
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func print(r *Result) {
	fmt.Printf("%d CPUs, Linux %s, %s wires, %d planes\n\n", r.CPUs, r.Kernel, r.Wire, r.Planes)
	fmt.Printf("%-34s %10s %12s\n", "throughput", "Gbit/s", "of TCP")
	fmt.Printf("%-34s %10.2f %12s\n", "iperf3 TCP over veth", r.TCPBits/1e9, "1.00")
	for _, size := range []string{"65536", "1048576"} {
		fmt.Printf("%-34s %10.2f %12.2f\n", "ib_write_bw -s "+size, r.WriteBits[size]/1e9, r.WriteBits[size]/r.TCPBits)
	}
	fmt.Printf("\n%-34s %10s %12s\n", "loss, ib_write_bw -s 1048576", "kept", "limit")
	for _, l := range []struct {
		name  string
		limit float64
	}{{"0.1%", 0.999}, {"1%", 0.99}, {"5%", 0.95}, {"10%", 0.90}} {
		fmt.Printf("%-34s %10.3f %12.3f\n", l.name, r.LossKept[l.name], l.limit)
	}
	fmt.Printf("\n%-34s %10s %12s\n", "latency, 8 B, half a round trip", "p50 µs", "p99 µs")
	for _, p := range []string{"ib_write_lat", "ib_send_lat", "tcp"} {
		fmt.Printf("%-34s %10.1f %12.1f\n", p, r.Latency[p].P50*1e6, r.Latency[p].P99*1e6)
	}
}

func save(path string, r *Result) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(text))
}
