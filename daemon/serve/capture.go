package serve

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/metaroce/metaroce/daemon/capture"
	"github.com/metaroce/metaroce/daemon/fail"
)

// CaptureArgs start a capture of the planes of a host or a NIC.
type CaptureArgs struct {
	Host    string `json:"host,omitempty"`   // empty: all
	NIC     string `json:"nic,omitempty"`    // HOST/mrN; empty: all
	Planes  []int  `json:"planes,omitempty"` // empty: all
	SnapLen int    `json:"snaplen,omitempty"`
}

// CaptureStarted names the capture. The file grows while it runs, and who asked reads it: the daemon writes nowhere
// else, so that a user of its socket cannot make it write where that user may not.
type CaptureStarted struct {
	ID   string `json:"id"`
	File string `json:"file"`
}

// CapturePoll asks how a capture goes, or ends it. One that nobody asks about for some seconds ends by itself: who
// started it is gone.
type CapturePoll struct {
	ID   string `json:"id"`
	Stop bool   `json:"stop,omitempty"`
}

// CaptureState answers. Once Done the file is complete, and belongs to who asked.
type CaptureState struct {
	Packets uint64 `json:"packets"`
	Lost    uint64 `json:"lost"`
	Done    bool   `json:"done"`
	Error   string `json:"error,omitempty"`
}

// orphaned is how long a capture lives without being asked about.
const orphaned = 10 * time.Second

type running struct {
	capture *capture.Capture
	file    string
	asked   time.Time
	stopped bool
}

func (s *server) cmdCapture(args json.RawMessage) (any, error) {
	var a CaptureArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	planes, err := s.chosen(a.Planes, named(a.Host), named(a.NIC))
	if err != nil {
		return nil, err
	}
	if s.cfg.Spool == "" {
		return nil, badRequest("this daemon was started without a directory for captures")
	}
	f, err := os.CreateTemp(s.cfg.Spool, "capture-*.pcapng")
	if err != nil {
		return nil, err
	}
	c, err := s.start(f, planes, a.SnapLen)
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		if errors.Is(err, capture.ErrBusy) {
			return nil, badRequest("%v", err)
		}
		return nil, err
	}
	id := filepath.Base(f.Name())
	s.captures[id] = &running{capture: c, file: f.Name(), asked: time.Now()}
	s.capturing.Store(int32(len(s.captures)))
	return CaptureStarted{ID: id, File: f.Name()}, nil
}

// named is a list of one name, or of none.
func named(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func (s *server) start(f *os.File, planes []*plane, snapLen int) (*capture.Capture, error) {
	var ports []*capture.Port
	for _, p := range planes {
		ports = append(ports, p.capture)
	}
	return capture.Start(f, capture.Options{SnapLen: snapLen, Comment: "MetaRoCE " + s.cfg.Name}, now(), time.Now(), ports...)
}

// CheckCapture is the file of an --capture, made and empty: who asks for it hears at once when that cannot be.
func CheckCapture(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if path == "-" {
		return "", fail.Usagef("--capture -: a daemon writes into a file; `nicemu capture -w -` writes to stdout")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	f, err := os.Create(path)
	if err != nil {
		return "", fail.Failf("--capture: %w", err)
	}
	return path, f.Close()
}

// captureAll begins the capture that the configuration asks for; end is called when the loop has ended.
func (s *server) captureAll() (end func() error, err error) {
	if s.cfg.Capture == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(s.cfg.Capture)
	if err != nil {
		return nil, fail.Failf("capture: %w", err)
	}
	c, err := s.start(f, s.planes, 0)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		c.Stop()
		<-c.Done()
		st := c.Stats()
		s.log.Info("capture ended", "file", s.cfg.Capture, "packets", st.Packets-st.Lost, "lost", st.Lost)
		if err := c.Err(); err != nil {
			return fail.Failf("the capture is not whole: %w", err)
		}
		return nil
	}, nil
}

func (s *server) cmdCapturePoll(args json.RawMessage) (any, error) {
	var a CapturePoll
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	r := s.captures[a.ID]
	if r == nil {
		return nil, badRequest("no capture %q runs", a.ID)
	}
	r.asked = time.Now()
	if a.Stop && !r.stopped {
		r.capture.Stop()
		r.stopped = true
	}
	st := r.capture.Stats()
	answer := CaptureState{Packets: st.Packets, Lost: st.Lost}
	select {
	case <-r.capture.Done(): // also when the disk is full
		answer.Done = true
		if err := r.capture.Err(); err != nil {
			answer.Error = err.Error()
		}
		if !r.stopped {
			r.capture.Stop()
		}
		delete(s.captures, a.ID)
		s.capturing.Store(int32(len(s.captures)))
	default:
	}
	return answer, nil
}

// cmdSweep ends the captures that nobody asks about any more.
func (s *server) cmdSweep(json.RawMessage) (any, error) {
	for id, r := range s.captures {
		if time.Since(r.asked) > orphaned {
			r.capture.Stop()
			os.Remove(r.file)
			delete(s.captures, id)
			s.log.Warn("capture ended: nobody reads it", "file", r.file)
		}
	}
	s.capturing.Store(int32(len(s.captures)))
	return nil, nil
}

// sweep calls for cmdSweep while captures run.
func (s *server) sweep(ctx context.Context) {
	tick := time.NewTicker(orphaned / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.capturing.Load() == 0 {
			continue
		}
		if err := s.callSelf(ctx, "capture-sweep", nil); err != nil && ctx.Err() == nil {
			s.log.Error("captures", "err", err)
		}
	}
}
