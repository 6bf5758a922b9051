package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// The reference implementation on DPDK over memif, beside nicemu, TCP, and memif without a protocol: `make bench-dpdk`.

const dpdkPlanes = 2 // of everything that is compared

// frameBytes is what a full packet of 4 KiB is on the wire, and so the frame of the ceiling.
const frameBytes = 14 + 20 + 8 + 4096 + 28

// dpdkRow is what a kind of NIC reaches; each value is of a round.
type dpdkRow struct {
	WriteBits map[string][]float64 `json:"write_bits_per_second"`     // by message size
	Messages  map[string][]float64 `json:"write_messages_per_second"` // of 64 bytes, by number of QPs
	Latency   []Latency            `json:"write_latency_seconds"`
}

// dpdkResult is what build/bench-dpdk.json holds.
type dpdkResult struct {
	Time       string              `json:"time"`
	CPUs       int                 `json:"cpus"`
	Kernel     string              `json:"kernel"`
	Planes     int                 `json:"planes"`
	Seconds    int                 `json:"seconds"`
	TCPBits    []float64           `json:"tcp_bits_per_second"`
	MemifBits  []float64           `json:"memif_bits_per_second"` // bare frames
	OfMemif    []float64           `json:"write_of_memif_ratio"`  // 1 MiB messages over DPDK
	NICs       map[string]*dpdkRow `json:"nics"`
	frameBytes int
}

// runner runs a pair of perftest's programs and returns the numbers of its table's last line.
type runner func(limit time.Duration, program string, args ...string) ([]float64, error)

func runDPDK(bin, out string, rounds, seconds int) error {
	r := &dpdkResult{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(), Planes: dpdkPlanes, Seconds: seconds, NICs: map[string]*dpdkRow{}, frameBytes: frameBytes}
	dpdk := filepath.Join(filepath.Dir(bin), "mroce-dpdk")
	if _, err := os.Stat(dpdk); err != nil {
		return fmt.Errorf("%w: `make` builds it where there is libdpdk", err)
	}
	var errs []error
	for i := range rounds {
		say("round %d of %d", i+1, rounds)
		errs = append(errs, dpdkRound(r, bin, dpdk, seconds))
	}
	printDPDK(r)
	return errors.Join(append(errs, saveJSON(out, r))...)
}

func dpdkRound(r *dpdkResult, bin, dpdk string, seconds int) error {
	for _, w := range []string{"tap", "udp"} {
		err := inLab(bin, bed.Options{Wire: w, Hosts: 2, Planes: dpdkPlanes, NoVeth: w != "tap"}, func(b *bed.Bed) error {
			if w == "tap" {
				tcp, err := b.TCP(seconds)
				if err != nil {
					return err
				}
				r.TCPBits = append(r.TCPBits, tcp)
			}
			return r.measure("nicemu "+w, b.Perftest, seconds)
		})
		if err != nil {
			return err
		}
	}
	p, err := newRig(bin, dpdk)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.bare(r, seconds); err != nil {
		return err
	}
	if err := p.up(); err != nil {
		return err
	}
	if err := r.measure("mroce-dpdk memif", p.perftest, seconds); err != nil {
		return err
	}
	v := r.NICs["mroce-dpdk memif"].WriteBits["1048576"]
	r.OfMemif = append(r.OfMemif, v[len(v)-1]/r.MemifBits[len(r.MemifBits)-1])
	return nil
}

// measure adds a round of one kind of NIC.
func (r *dpdkResult) measure(name string, run runner, seconds int) error {
	row := r.NICs[name]
	if row == nil {
		row = &dpdkRow{WriteBits: map[string][]float64{}, Messages: map[string][]float64{}}
		r.NICs[name] = row
	}
	limit, d := time.Duration(seconds+20)*time.Second, strconv.Itoa(seconds)
	for _, size := range sizes {
		v, err := run(limit, "ib_write_bw", "-s", size, "-D", d, "--report_gbits")
		if err != nil {
			return err
		}
		row.WriteBits[size] = append(row.WriteBits[size], v[3]*1e9)
	}
	for _, qps := range []string{"1", "16"} {
		v, err := run(limit, "ib_write_bw", "-s", "64", "-q", qps, "-D", d)
		if err != nil {
			return err
		}
		row.Messages[qps] = append(row.Messages[qps], v[4]*1e6)
	}
	v, err := run(120*time.Second, "ib_write_lat", "-s", "8", "-n", "5000")
	if err != nil {
		return err
	}
	if len(v) < 8 {
		return fmt.Errorf("ib_write_lat: unknown table %v", v)
	}
	row.Latency = append(row.Latency, Latency{v[4] / 1e6, v[7] / 1e6})
	return nil
}

func printDPDK(r *dpdkResult) {
	fmt.Printf("%d CPUs, Linux %s, %d planes; %d rounds of %d s: median (lowest to highest)\n\n", r.CPUs, r.Kernel, r.Planes, len(r.MemifBits), r.Seconds)
	names := []string{"nicemu tap", "nicemu udp", "mroce-dpdk memif"}
	line := func(name string, cells ...string) {
		fmt.Printf("%-30s", name)
		for _, c := range cells {
			fmt.Printf(" %22s", c)
		}
		fmt.Println()
	}
	line("", names...)
	each := func(name string, cell func(*dpdkRow) string) {
		var cells []string
		for _, n := range names {
			c := "-"
			if row := r.NICs[n]; row != nil {
				c = cell(row)
			}
			cells = append(cells, c)
		}
		line(name, cells...)
	}
	for _, size := range sizes {
		each("ib_write_bw -s "+size+", Gbit/s", func(x *dpdkRow) string { return spread(x.WriteBits[size], 1e-9, 2) })
	}
	for _, qps := range []string{"1", "16"} {
		each("ib_write_bw -s 64 -q "+qps+", M/s", func(x *dpdkRow) string { return spread(x.Messages[qps], 1e-6, 3) })
	}
	for i, name := range []string{"p50", "p99"} {
		each("ib_write_lat -s 8, "+name+" µs", func(x *dpdkRow) string {
			var v []float64
			for _, l := range x.Latency {
				v = append(v, []float64{l.P50, l.P99}[i])
			}
			return spread(v, 1e6, 0)
		})
	}
	fmt.Printf("\niperf3 TCP over veth           %s Gbit/s\nbare frames of %d B, one memif %s Gbit/s\nib_write_bw -s 1048576 over DPDK, of them: %s\n",
		spread(r.TCPBits, 1e-9, 2), r.frameBytes, spread(r.MemifBits, 1e-9, 2), spread(r.OfMemif, 1, 2))
}

// rig is two daemons of mroce-dpdk joined by memifs, without huge pages.
type rig struct {
	dir, bin, dpdk string
	env            []string
	port           int
}

func newRig(bin, dpdk string) (*rig, error) {
	dir, err := os.MkdirTemp("", "mr-bench")
	if err != nil {
		return nil, err
	}
	lib, err := filepath.Abs(filepath.Join(filepath.Dir(bin), "../lib"))
	if err != nil {
		return nil, err
	}
	return &rig{dir: dir, bin: bin, dpdk: dpdk, port: 21600, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "LD_LIBRARY_PATH="+lib)}, nil
}

func (p *rig) close() {
	cmd := exec.Command(p.dpdk, "down", "--all")
	cmd.Env = p.env
	_ = cmd.Run() // nothing may be up
	os.RemoveAll(p.dir)
}

func (p *rig) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append([]string{}, p.env...), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return cmd
}

func (p *rig) wire(role string, i int) string {
	return fmt.Sprintf("dpdk:net_memif%d,id=%d,role=%s,socket=%s/m.sock", i, i, role, p.dir)
}

func (p *rig) up() error {
	for i, role := range []string{"server", "client"} {
		args := []string{p.dpdk, "up", "--nic", bed.Host(i) + "/mr0", "--addr", fmt.Sprintf("10.0.0.%d/24", i+1)}
		for k := range dpdkPlanes {
			args = append(args, "--wire", p.wire(role, k))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		out, err := p.command(ctx, nil, append(args, "--", "--no-huge", "-m", "256")...).CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("mroce-dpdk up: %w\n%s", err, out)
		}
	}
	time.Sleep(time.Second) // links and addresses
	return nil
}

// bare measures frames without a protocol.
func (p *rig) bare(r *dpdkResult, seconds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds+30)*time.Second)
	defer cancel()
	size, d := strconv.Itoa(frameBytes), strconv.Itoa(seconds)+"s"
	receive := p.command(ctx, nil, p.dpdk, "rate", "--json", "--frame", size, "--for", d, "--wire", p.wire("server", 9), "receive")
	var out strings.Builder
	receive.Stdout = &out
	if err := receive.Start(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if text, err := p.command(ctx, nil, p.dpdk, "rate", "--frame", size, "--for", strconv.Itoa(seconds+1)+"s", "--wire", p.wire("client", 9), "send").CombinedOutput(); err != nil {
		return fmt.Errorf("mroce-dpdk rate send: %w\n%s", err, text)
	}
	if err := receive.Wait(); err != nil {
		return fmt.Errorf("mroce-dpdk rate receive: %w", err)
	}
	var got struct {
		Bits float64 `json:"bits_per_second"`
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		return fmt.Errorf("mroce-dpdk rate --json: %w", err)
	}
	r.MemifBits = append(r.MemifBits, got.Bits)
	return nil
}

func (p *rig) perftest(limit time.Duration, program string, args ...string) ([]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p.port++
	args = append([]string{program, "-F", "-p", strconv.Itoa(p.port)}, args...)
	socket := func(host string) []string {
		return []string{"MR_SOCKET=" + filepath.Join(p.dir, "mroce", host+"-mr0.sock")}
	}
	server := p.command(ctx, socket("a"), args...)
	if err := server.Start(); err != nil {
		return nil, err
	}
	time.Sleep(500 * time.Millisecond)
	out, err := p.command(ctx, socket("b"), append(args, "127.0.0.1")...).CombinedOutput()
	if err != nil {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
		return nil, fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	if err := server.Wait(); err != nil {
		return nil, fmt.Errorf("%s, server: %w", program, err)
	}
	return bed.LastRow(program, string(out))
}
