package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metaroce/metaroce/daemon"
	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/client"
)

// commands are the management commands beside those of package daemon. They run on the loop.
func (s *server) commands() map[string]daemon.MgmtFunc {
	return map[string]daemon.MgmtFunc{
		"impair":        s.cmdImpair,
		"impair-timed":  s.cmdTimed,
		"capture":       s.cmdCapture,
		"capture-poll":  s.cmdCapturePoll,
		"capture-sweep": s.cmdSweep,
	}
}

func badRequest(format string, args ...any) error {
	return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func decode(args json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

// ImpairArgs choose planes and change what they suffer. No words: nothing changes, the answer says what is.
type ImpairArgs struct {
	Planes []int    `json:"planes,omitempty"` // empty: all
	Hosts  []string `json:"hosts,omitempty"`  // empty: all
	Words  []string `json:"words,omitempty"`  // as in daemon/impair; "clear" goes back to none at all
}

// ImpairState is what one plane of one NIC suffers.
type ImpairState struct {
	NIC   string `json:"nic"`
	Plane int    `json:"plane"`
	Words string `json:"words"`
}

func (s *server) chosen(planes []int, hosts, nics []string) ([]*plane, error) {
	var got []*plane
	for _, p := range s.planes {
		if covers(planes, p.index) && coversName(hosts, p.host) && coversName(nics, p.nic) {
			got = append(got, p)
		}
	}
	if len(got) == 0 {
		return nil, badRequest("no such plane or host here")
	}
	return got, nil
}

func (s *server) cmdImpair(args json.RawMessage) (any, error) {
	var a ImpairArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	planes, err := s.chosen(a.Planes, a.Hosts, nil)
	if err != nil {
		return nil, err
	}
	answer := []ImpairState{}
	for _, p := range planes {
		if len(a.Words) > 0 {
			// Tried on a copy: a wrong word must leave all planes as they are. It is the same for each, so the first tells.
			if _, err := p.impair.Spec().Parse(a.Words); err != nil {
				return nil, badRequest("%v", err)
			}
			p.manual = append(p.manual, a.Words...)
			if i := slices.Index(a.Words, "clear"); i >= 0 {
				p.manual = append([]string{}, a.Words[i:]...)
			}
			if err := s.apply(p); err != nil {
				return nil, err
			}
			s.log.Info("impairment", "nic", p.nic, "plane", p.index, "now", p.impair.Spec().String())
		}
		answer = append(answer, ImpairState{NIC: p.nic, Plane: p.index, Words: p.impair.Spec().String()})
	}
	return answer, nil
}

// timedArgs switch the lab's timed impairment of that index.
type timedArgs struct {
	Index int  `json:"index"`
	On    bool `json:"on"`
}

func (s *server) cmdTimed(args json.RawMessage) (any, error) {
	var a timedArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	if a.Index < 0 || a.Index >= len(s.cfg.Impair) {
		return nil, badRequest("no impairment %d", a.Index)
	}
	for _, p := range s.planes {
		p.timed[a.Index] = a.On
		if err := s.apply(p); err != nil {
			return nil, err
		}
	}
	s.log.Info("timed impairment", "what", s.cfg.Impair[a.Index].String(), "on", a.On)
	return nil, nil
}

// callSelf runs a command by our own socket. The socket may not be there yet.
func (s *server) callSelf(ctx context.Context, cmd string, args any) error {
	for {
		c, err := client.Dial(s.cfg.Socket)
		if err == nil {
			return errors.Join(c.Mgmt(cmd, args, nil), c.Close())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
