// Package coll starts the ranks of collbench (rccl-shim/collbench, C: it calls a table of C functions, and Go here is
// without cgo), one process each, and reads what rank 0 measures.
package coll

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// RanksMax is what a collbench can hold.
const RanksMax = 16

// patience is how long ranks may go on after one of them failed: a failed peer must fail its neighbours within 5 s.
const patience = 10 * time.Second

// Head says what is measured.
type Head struct {
	Net      string `json:"net"`
	Device   string `json:"device"`
	Table    int    `json:"table"`
	Ranks    int    `json:"ranks"`
	Channels int    `json:"channels"`
	Group    int    `json:"group"`
	Slice    int    `json:"slice_bytes"`
}

// Row is one measurement. Wrong is -1 where it was not checked, Root where a collective has none.
type Row struct {
	Collective string  `json:"collective"`
	Algorithm  string  `json:"algorithm"`
	Size       uint64  `json:"size_bytes"`
	Count      uint64  `json:"count"`
	Type       string  `json:"type"`
	RedOp      string  `json:"redop"`
	Root       int     `json:"root"`
	Iterations int     `json:"iterations"`
	Seconds    float64 `json:"time_seconds"`
	AlgBW      float64 `json:"algbw_bytes_per_second"`
	BusBW      float64 `json:"busbw_bytes_per_second"`
	Wrong      int64   `json:"wrong"`
}

// Storm is the life of many connections.
type Storm struct {
	Connections int     `json:"connections"`
	Open        float64 `json:"open_seconds"`
	Use         float64 `json:"use_seconds"`
	Close       float64 `json:"close_seconds"`
}

// Options of a run.
type Options struct {
	Rank    string   // path of collbench-rank
	Args    []string // for every rank
	Ranks   int
	Root    string                                                                     // HOST:PORT where rank 0 listens
	Command func(ctx context.Context, rank int, program ...string) *exec.Cmd           // where a rank runs
	Started func(rank int, pid int)                                                    // may be nil
	Line    func(head *Head, row *Row, storm *Storm, text json.RawMessage) (err error) // a line of rank 0; one is set
}

// process is a rank.
type process struct {
	rank int
	cmd  *exec.Cmd
	errs bed.Output
	err  error
}

// Run runs all ranks to their end. When one fails, the others are to fail as well; those that do not are ended.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan *process, o.Ranks)
	var all []*process
	var lines sync.WaitGroup
	var bad error
	for r := range o.Ranks {
		p, out, err := start(ctx, o, r)
		if err != nil {
			cancel()
			bad = err
			break
		}
		all = append(all, p)
		if r == 0 {
			lines.Go(func() { bad = errors.Join(bad, read(out, o.Line)) })
		}
		go func() {
			if r == 0 {
				lines.Wait() // Wait closes what is read from
			}
			p.err = p.cmd.Wait()
			done <- p
		}()
	}
	var first *process
	for range all {
		p := <-done
		if p.err != nil && first == nil {
			first = p
			time.AfterFunc(patience, cancel)
		}
	}
	lines.Wait()
	return errors.Join(bad, failure(all, first))
}

func start(ctx context.Context, o Options, r int) (*process, io.Reader, error) {
	args := append([]string{o.Rank, "--rank", strconv.Itoa(r), "--ranks", strconv.Itoa(o.Ranks), "--root", o.Root}, o.Args...)
	p := &process{rank: r, cmd: o.Command(ctx, r, args...)}
	p.cmd.Stderr = &p.errs
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 3 * time.Second
	var out io.Reader
	if r == 0 {
		var err error
		if out, err = p.cmd.StdoutPipe(); err != nil {
			return nil, nil, err
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("rank %d: %w", r, err)
	}
	if o.Started != nil {
		o.Started(r, p.cmd.Process.Pid)
	}
	return p, out, nil
}

// failure tells what the first rank that failed said, and which others went with it.
func failure(all []*process, first *process) error {
	if first == nil {
		return nil
	}
	text := strings.TrimSpace(first.errs.String())
	if text == "" {
		text = fmt.Sprintf("rank %d: %v", first.rank, first.err)
	}
	for _, p := range all {
		var e *exec.ExitError
		if p == first || p.err == nil {
			continue
		}
		said := strings.TrimSpace(p.errs.String())
		if errors.As(p.err, &e) && said != "" {
			text += "\n" + said
		} else {
			text += fmt.Sprintf("\nrank %d: %v", p.rank, p.err)
		}
	}
	return errors.New(text)
}

// read takes rank 0's lines apart.
func read(from io.Reader, line func(*Head, *Row, *Storm, json.RawMessage) error) error {
	s := bufio.NewScanner(from)
	var err error
	for s.Scan() {
		text := bytes.Clone(s.Bytes())
		var kind struct {
			Net, Collective string
			Connections     int
		}
		if e := json.Unmarshal(text, &kind); e != nil {
			err = errors.Join(err, fmt.Errorf("rank 0 said %q: %w", text, e))
			continue
		}
		var (
			head  *Head
			row   *Row
			storm *Storm
			e     error
		)
		switch {
		case kind.Net != "":
			head = new(Head)
			e = json.Unmarshal(text, head)
		case kind.Collective != "":
			row = new(Row)
			e = json.Unmarshal(text, row)
		default:
			storm = new(Storm)
			e = json.Unmarshal(text, storm)
		}
		if e == nil && line != nil {
			e = line(head, row, storm, text)
		}
		err = errors.Join(err, e)
	}
	return errors.Join(err, s.Err())
}
