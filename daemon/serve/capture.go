package serve

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/metaroce/metaroce/daemon/capture"
)

// CaptureArgs start a capture of a host's planes.
type CaptureArgs struct {
	Host    string `json:"host"`
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
	planes, err := s.chosen(a.Planes, []string{a.Host})
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
	var ports []*capture.Port
	for _, p := range planes {
		ports = append(ports, p.capture)
	}
	c, err := capture.Start(f, capture.Options{SnapLen: a.SnapLen, Comment: "MetaRoCE " + s.cfg.Name}, now(), time.Now(), ports...)
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
