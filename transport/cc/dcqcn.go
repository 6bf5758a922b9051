package cc

import "github.com/metaroce/metaroce/internal/mono"

// DCQCNConfig are the constants of DCQCN (Zhu et al., SIGCOMM 2015). Rates are in bits per second.
type DCQCNConfig struct {
	Line        float64       // rate without congestion
	Min         float64       // lowest rate
	AI, HAI     float64       // additive and hyper increase of the target rate per stage
	G           float64       // weight of a notification in alpha
	AlphaTimer  mono.Duration // alpha decays once in such a time without a notification
	RateTimer   mono.Duration // one stage of increase
	ByteCounter uint64        // another stage each so many bytes
	Stages      int           // of fast recovery (F)
	CutSpacing  mono.Duration // shortest time between two cuts
}

// PaperDCQCN returns the constants of the paper; the increases, given there for 40 Gbit/s, go with the line rate.
func PaperDCQCN(line float64) DCQCNConfig {
	return DCQCNConfig{Line: line, Min: line / 1000, AI: line / 1000, HAI: line / 200, G: 1.0 / 256,
		AlphaTimer: 55 * mono.Microsecond, RateTimer: 55 * mono.Microsecond, ByteCounter: 10_000_000, Stages: 5}
}

// ConnectXDCQCN returns the factory values of a ConnectX NIC as published.
func ConnectXDCQCN(line float64) DCQCNConfig {
	return DCQCNConfig{Line: line, Min: 1e6, AI: 5e6, HAI: 50e6, G: 5.0 / 1024,
		AlphaTimer: mono.Microsecond, RateTimer: 300 * mono.Microsecond, ByteCounter: 32767, Stages: 1, CutSpacing: 4 * mono.Microsecond}
}

// DCQCN is the reaction point of one flow. It keeps no timer running: what its timers would have done is made up for
// when the rate is asked for. The zero value, once given a configuration by Start, sends at line rate.
type DCQCN struct {
	c       *DCQCNConfig
	limited bool // below the line rate
	rc, rt  float64
	alpha   float64
	alphaAt mono.Time
	rateAt  mono.Time
	cutAt   mono.Time
	timerN  int // stages since the last cut, by time and by bytes
	bytesN  int
	bytes   uint64
}

// Start puts the flow at line rate.
func (d *DCQCN) Start(c *DCQCNConfig) { *d = DCQCN{c: c, rc: c.Line, rt: c.Line} }

// Limited reports whether the flow is to be paced.
func (d *DCQCN) Limited() bool { return d.limited }

// Alpha returns the estimate of congestion.
func (d *DCQCN) Alpha() float64 { return d.alpha }

// Rate returns the rate of now.
func (d *DCQCN) Rate(now mono.Time) float64 {
	d.advance(now)
	return d.rc
}

// OnSend counts sent bytes.
func (d *DCQCN) OnSend(now mono.Time, n int) {
	if !d.limited {
		return
	}
	d.advance(now)
	for d.bytes += uint64(n); d.limited && d.bytes >= d.c.ByteCounter; d.bytes -= d.c.ByteCounter {
		d.bytesN++
		d.increase()
	}
}

// OnCNP takes in a congestion notification.
func (d *DCQCN) OnCNP(now mono.Time) {
	d.advance(now)
	c := d.c
	if !d.limited {
		d.limited, d.alpha, d.rc, d.rt = true, 1, c.Line, c.Line
	} else if now.Sub(d.cutAt) < c.CutSpacing {
		return
	}
	d.cutAt = now
	d.rt = d.rc
	d.rc = max(d.rc*(1-d.alpha/2), c.Min)
	d.alpha = (1-c.G)*d.alpha + c.G
	d.timerN, d.bytesN, d.bytes = 0, 0, 0
	d.alphaAt, d.rateAt = now.Add(c.AlphaTimer), now.Add(c.RateTimer)
}

// advance makes up for the timers that have run out.
func (d *DCQCN) advance(now mono.Time) {
	if !d.limited {
		return
	}
	c := d.c
	for ; d.alphaAt <= now; d.alphaAt = d.alphaAt.Add(c.AlphaTimer) {
		if d.alpha *= 1 - c.G; d.alpha < 1e-6 { // as good as none: idle times are long
			d.alpha, d.alphaAt = 0, now
		}
	}
	for ; d.limited && d.rateAt <= now; d.rateAt = d.rateAt.Add(c.RateTimer) {
		d.timerN++
		d.increase()
	}
}

// increase is one stage: fast recovery, then additive, then hyper increase of the target; the rate goes half way.
func (d *DCQCN) increase() {
	c := d.c
	switch {
	case max(d.timerN, d.bytesN) < c.Stages:
	case min(d.timerN, d.bytesN) > c.Stages:
		d.rt += c.HAI
	default:
		d.rt += c.AI
	}
	d.rt = min(d.rt, c.Line)
	if d.rc = (d.rc + d.rt) / 2; d.rc > 0.999*c.Line {
		d.rc, d.rt, d.alpha, d.limited = c.Line, c.Line, 0, false
	}
}
