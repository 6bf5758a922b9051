package scale

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/transport/wire"
)

// Constant is one figure that packets decide, and where it is from.
type Constant struct {
	Value float64 `yaml:"value" json:"value"`
	From  string  `yaml:"from" json:"from"`
}

// Constants of a transport; fit.yaml says what each is.
type Constants struct {
	Fill    Constant `yaml:"fill" json:"fill"`       // share of the fair rate
	Alpha   Constant `yaml:"alpha" json:"alpha_us"`  // µs a message
	Spread  Constant `yaml:"spread" json:"spread"`   // of the square root of time at full load and a round trip
	Loss    Constant `yaml:"loss" json:"loss"`       // factor of p
	Detect  Constant `yaml:"detect" json:"detect"`   // round trips until a lost packet goes again
	Silence Constant `yaml:"silence" json:"silence"` // metaroce: round trips, rocev2: timeouts, until a dead plane is left
}

// Table is fit.yaml.
type Table struct {
	MetaRoCE Constants `yaml:"metaroce" json:"metaroce"`
	RoCEv2   Constants `yaml:"rocev2" json:"rocev2"`
}

//go:embed fit.yaml
var builtin []byte

// Builtin returns the constants that come with the program.
func Builtin() Table {
	t, err := ParseTable("fit.yaml", builtin)
	if err != nil {
		panic("scale: " + err.Error()) // a test reads it
	}
	return t
}

// ParseTable reads a table of constants. Errors begin with the file's name and say the line.
func ParseTable(file string, data []byte) (Table, error) {
	var t Table
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&t); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file is empty")
		}
		return t, fmt.Errorf("%s: %w", file, err)
	}
	for _, c := range []struct {
		name   string
		c      Constant
		lo, hi float64
	}{
		{"metaroce: fill", t.MetaRoCE.Fill, 0.01, 1.5}, {"metaroce: loss", t.MetaRoCE.Loss, 0, 10}, {"metaroce: spread", t.MetaRoCE.Spread, 0, 100},
		{"rocev2: spread", t.RoCEv2.Spread, 0, 0}, {"metaroce: alpha", t.MetaRoCE.Alpha, -1000, 1e6},
		{"metaroce: detect", t.MetaRoCE.Detect, 0, 1000}, {"metaroce: silence", t.MetaRoCE.Silence, 0, 1000},
		{"rocev2: fill", t.RoCEv2.Fill, 0.01, 1.5}, {"rocev2: loss", t.RoCEv2.Loss, 0, 10}, {"rocev2: alpha", t.RoCEv2.Alpha, -1000, 1e6},
		{"rocev2: detect", t.RoCEv2.Detect, 0, 1000}, {"rocev2: silence", t.RoCEv2.Silence, 0, 1000},
	} {
		if !(c.c.Value >= c.lo && c.c.Value <= c.hi) {
			return t, fmt.Errorf("%s: %s: %v is not within %v and %v", file, c.name, c.c.Value, c.lo, c.hi)
		}
		if c.c.From == "" {
			return t, fmt.Errorf("%s: %s has no from:, the run or the reason that it is from", file, c.name)
		}
	}
	return t, nil
}

// Transport is how messages travel.
type Transport struct {
	Kind plan.TransportKind
	Constants
	QPs  int     // rocev2: connections that a pair's message is cut over
	RTO  float64 // rocev2: seconds
	Loss float64 // share of packets lost on the way
}

// NewTransport returns a transport with the table's constants. qps and rto (seconds) are used by rocev2 only; 0 = 1 and 67 ms.
func NewTransport(kind plan.TransportKind, t Table, qps int, rto, loss float64) (*Transport, error) {
	x := &Transport{Kind: kind, QPs: 1, RTO: 0.067, Loss: loss}
	switch kind {
	case plan.MetaRoCE:
		x.Constants = t.MetaRoCE
	case plan.RoCEv2:
		x.Constants = t.RoCEv2
		if qps > 0 {
			x.QPs = qps
		}
		if rto > 0 {
			x.RTO = rto
		}
	case plan.Ideal:
		x.Constants = Constants{Fill: Constant{1, "by definition"}, Loss: Constant{0, "by definition"}}
	default:
		return nil, fmt.Errorf("unknown transport %q", kind)
	}
	if loss < 0 || loss >= 1 {
		return nil, fmt.Errorf("a loss of %v leaves nothing", loss)
	}
	return x, nil
}

// spreads reports whether bytes go over all planes and uplinks alike.
func (t *Transport) spreads() bool { return t.Kind != plan.RoCEv2 }

// header is what a packet of a WRITE carries beside payload from BTH to ICRC, and the first one and the last one more of.
func (t *Transport) header() (each, once float64) {
	switch t.Kind {
	case plan.MetaRoCE: // every packet says where its bytes go
		return wire.BTHLen + wire.MPHLen + wire.RETHLen + wire.ICRCLen, wire.ImmDtLen
	case plan.RoCEv2:
		return wire.BTHLen + wire.ICRCLen, wire.RETHLen + wire.ImmDtLen
	case plan.Ideal:
	}
	return 0, 0
}

func (t *Transport) outer(f *Fabric) float64 {
	if t.Kind == plan.Ideal {
		return 0
	}
	return float64(f.T.Overhead)
}

// packet is the length on the wire of the longest packet of a message.
func (t *Transport) packet(f *Fabric, message int) float64 {
	each, _ := t.header()
	return float64(min(message, f.T.MTU)) + each + t.outer(f)
}

// packets of a message.
func packets(f *Fabric, message int64) float64 {
	return math.Max(1, math.Ceil(float64(message)/float64(f.T.MTU)))
}

// wireBytes is a message's length on the wire with all headers.
func (t *Transport) wireBytes(f *Fabric, message int64) float64 {
	each, once := t.header()
	return float64(message) + packets(f, message)*(each+t.outer(f)) + once
}

// Acknowledgements: how many data packets one stands for.
const (
	metaAckEvery = 8  // AckEvery of spec/05-reliability.md
	roceAckEvery = 16 // transport/rocev2, Config.AckEvery
	rocAETH      = 4
)

// ackPacket is the length on the wire of an acknowledgement of a full row of packets: MetaRoCE's has a block for each path, of
// which each packet takes another, and for each plane.
func (t *Transport) ackPacket(f *Fabric) float64 {
	switch t.Kind {
	case plan.MetaRoCE:
		return t.outer(f) + wire.BTHLen + wire.MPHLen + wire.AckHLen + metaAckEvery*wire.PathBlockLen + float64(min(f.planes, metaAckEvery))*wire.PlaneBlockLen + wire.ICRCLen
	case plan.RoCEv2:
		return t.outer(f) + wire.BTHLen + rocAETH + wire.ICRCLen
	case plan.Ideal:
	}
	return 0
}

// acks is the number of acknowledgements of a message.
func (t *Transport) acks(f *Fabric, message int64) float64 {
	switch t.Kind {
	case plan.MetaRoCE:
		return math.Ceil(packets(f, message) / metaAckEvery)
	case plan.RoCEv2:
		return math.Ceil(packets(f, message) / roceAckEvery)
	case plan.Ideal:
	}
	return 0
}

// ackShare is the bytes of acknowledgements for each byte of data on the wire.
func (t *Transport) ackShare(f *Fabric, message int64) float64 {
	n := t.acks(f, message)
	if n == 0 {
		return 0
	}
	full := t.ackPacket(f)
	if t.Kind == plan.MetaRoCE { // blocks are those of the packets there are
		k := packets(f, message)
		full -= metaAckEvery * wire.PathBlockLen
		return (n*full + k*wire.PathBlockLen) / t.wireBytes(f, message)
	}
	return n * full / t.wireBytes(f, message)
}

// goodput is the share of a flow's rate (bytes a second) that is left at the transport's loss, with a round trip in seconds.
func (t *Transport) goodput(f *Fabric, rate, rtt float64) float64 {
	p := t.Loss * t.Constants.Loss.Value
	switch {
	case t.Loss == 0 || t.Kind == plan.Ideal:
		return 1
	case t.Kind == plan.MetaRoCE:
		return math.Max(1-p, 1e-3)
	}
	full := t.packet(f, f.T.MTU)
	w := math.Max(1, rate*rtt/full) // packets that go back with one that was lost
	r := t.RTO * rate / full        // packets' time that a timeout takes: when the repeat is lost, too
	return (1 - p) / (1 - p + p*w + p*p*r)
}

// tail is the time by which losses of the last packets hold up a message, or the last of several: of n packets under way at
// the end, each round leaves a share of p.
func (t *Transport) tail(n, rtt float64) float64 {
	if t.Loss == 0 || t.Kind != plan.MetaRoCE {
		return 0 // go-back-N: the closed form has it
	}
	rounds, q := 0.0, 1.0
	for range 1000 {
		q *= t.Loss
		x := -math.Expm1(n * math.Log1p(-q)) // somebody needs this round
		if rounds += x; x < 1e-6 {
			break
		}
	}
	return rounds * (t.Detect.Value*rtt + ackHold)
}

// ackHold is how long a receiver keeps an acknowledgement back at most (transport/metaroce: AckHold), seconds.
const ackHold = 2e-6
