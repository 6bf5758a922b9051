package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	planes = 4
	hostA  = "10.0.0.1"
	vethA  = "172.31.99.1" // beside the lab's own networks
	vethB  = "172.31.99.2"
)

// bed is a lab of two hosts with a veth between their namespaces besides the planes.
type bed struct {
	bin     string
	dir     string
	env     []string
	holders []*exec.Cmd // a sleeping process in each host: names its namespace to ip(8)
	port    int
	failure error
}

func newBed(bin, wire string) (*bed, error) {
	dir, err := os.MkdirTemp("", "mr-bench")
	if err != nil {
		return nil, err
	}
	b := &bed{bin: bin, dir: dir, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir), port: 18600}
	text := fmt.Sprintf("name: bench\nhosts:\n  a: {addr: %s/24}\n  b: {addr: 10.0.0.2/24}\nplanes: %d\nwire: %s\n", hostA, planes, wire)
	file := filepath.Join(dir, "lab.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if err := b.nicemu("lab", "up", file); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := b.veth(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bed) close() {
	for _, h := range b.holders {
		_ = h.Process.Kill()
		_ = h.Wait()
	}
	b.failure = errors.Join(b.failure, b.nicemu("lab", "down"))
	os.RemoveAll(b.dir)
}

// veth joins the hosts' namespaces by a pair of interfaces: the way TCP takes.
func (b *bed) veth() error {
	var pids []string
	for _, host := range []string{"a", "b"} {
		h := b.command(context.Background(), host, "sleep", "3600")
		if err := h.Start(); err != nil {
			return err
		}
		b.holders = append(b.holders, h)
		pids = append(pids, strconv.Itoa(h.Process.Pid))
	}
	time.Sleep(300 * time.Millisecond) // nicemu enters the namespace, then becomes sleep
	if out, err := exec.Command("ip", "link", "add", "mrbench0", "netns", pids[0], "type", "veth", "peer", "name", "mrbench1", "netns", pids[1]).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot join the two namespaces by a veth (needs root): %w: %s", err, out)
	}
	for _, c := range [][]string{{"a", vethA, "mrbench0"}, {"b", vethB, "mrbench1"}} {
		for _, ip := range [][]string{{"addr", "add", c[1] + "/30", "dev", c[2]}, {"link", "set", c[2], "up"}} {
			if _, err := b.on(10*time.Second, c[0], append([]string{"ip"}, ip...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bed) nicemu(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.bin, args...)
	cmd.Env = b.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nicemu %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (b *bed) command(ctx context.Context, host string, program ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.bin, append([]string{"lab", "exec", host, "--"}, program...)...)
	cmd.Env = b.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	return cmd
}

// on returns what the program wrote: its output, then what it complained of.
func (b *bed) on(limit time.Duration, host string, program ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := b.command(ctx, host, program...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s on %s: %w\n%s%s", strings.Join(program, " "), host, err, errs.String(), out.String())
	}
	return out.String() + errs.String(), nil
}

// pair runs a server on host a and a client on b, which is repeated while the server does not listen yet.
func (b *bed) pair(limit time.Duration, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s := b.command(ctx, "a", server...)
	var said bytes.Buffer
	s.Stdout, s.Stderr = &said, &said
	if err := s.Start(); err != nil {
		return "", err
	}
	var out string
	err := errors.New("the server never listened")
	for range 20 {
		time.Sleep(250 * time.Millisecond)
		if out, err = b.on(limit, "b", client...); err == nil || ctx.Err() != nil {
			break
		}
		if text := err.Error(); !strings.Contains(text, "onnect to") && !strings.Contains(text, "refused") {
			break
		}
	}
	if err != nil {
		_ = s.Process.Signal(syscall.SIGTERM)
		_ = s.Wait()
		return "", fmt.Errorf("%w\nserver: %s", err, said.String())
	}
	return out, s.Wait()
}

// tcp returns what iperf3 receives, in bits a second.
func (b *bed) tcp(seconds int) (float64, error) {
	out, err := b.pair(time.Duration(seconds+20)*time.Second, []string{"iperf3", "-s", "-1"}, []string{"iperf3", "-c", vethA, "-t", strconv.Itoa(seconds), "-J"})
	if err != nil {
		return 0, err
	}
	var r struct {
		End struct {
			Sum struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		return 0, fmt.Errorf("iperf3's JSON: %w", err)
	}
	return r.End.Sum.Bits, nil
}

// write returns ib_write_bw's average, in bits a second.
func (b *bed) write(size string, seconds int) (float64, error) {
	v, err := b.perftest(time.Duration(seconds+20)*time.Second, "ib_write_bw", "-s", size, "-D", strconv.Itoa(seconds), "--report_gbits")
	if err != nil {
		return 0, err
	}
	return v[3] * 1e9, nil // bytes, iterations, peak, average
}

func (b *bed) latency(program string) (Latency, error) {
	v, err := b.perftest(60*time.Second, program, "-s", "8", "-n", "20000")
	if err != nil {
		return Latency{}, err
	}
	if len(v) < 8 {
		return Latency{}, fmt.Errorf("%s: unknown table %v", program, v)
	}
	return Latency{v[4] / 1e6, v[7] / 1e6}, nil // bytes, iterations, min, max, typical, average, stdev, p99
}

// clockNoise is how perftest says that it could not calibrate its clock, as the machine was busy just then: the data
// moved, but every rate and time it prints is 0.
const clockNoise = "Correlation coefficient"

// perftest returns the numbers in the last line of a perftest program's table.
func (b *bed) perftest(limit time.Duration, program string, args ...string) ([]float64, error) {
	b.port++
	server := append([]string{program, "-F", "-p", strconv.Itoa(b.port)}, args...)
	out, err := b.pair(limit, server, append(append([]string{}, server...), hostA))
	for try := 0; try < 5 && strings.Contains(out, clockNoise); try++ {
		out, err = b.pair(limit, server, append(append([]string{}, server...), hostA))
	}
	if err != nil {
		return nil, err
	}
	if strings.Contains(out, clockNoise) {
		return nil, fmt.Errorf("%s could not calibrate its clock in six tries: the machine is too busy", program)
	}
	var last []float64
	for _, line := range strings.Split(out, "\n") {
		var v []float64
		for _, f := range strings.Fields(line) {
			x, err := strconv.ParseFloat(f, 64)
			if err != nil {
				v = nil
				break
			}
			v = append(v, x)
		}
		if len(v) >= 4 {
			last = v
		}
	}
	if last == nil {
		return nil, fmt.Errorf("%s printed no table:\n%s", program, out)
	}
	return last, nil
}

// pong runs this program's own TCP ping-pong in the hosts.
func (b *bed) pong() (Latency, error) {
	self, err := os.Executable()
	if err != nil {
		return Latency{}, err
	}
	b.port++
	at := fmt.Sprintf("%s:%d", vethA, b.port)
	out, err := b.pair(60*time.Second, []string{self, "-pong", fmt.Sprintf(":%d", b.port)}, []string{self, "-pong", at})
	if err != nil {
		return Latency{}, err
	}
	var l Latency
	return l, json.NewDecoder(strings.NewReader(out)).Decode(&l)
}
