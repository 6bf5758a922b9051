package ib

import "github.com/metaroce/metaroce/internal/mono"

// Syndrome is the first byte of AETH: two bits of type and five of value.
type Syndrome uint8

// Syndromes.
const (
	AckNoCredits  Syndrome = 0x1F // acknowledged; receives are not counted (code 31)
	RNRNak        Syndrome = 0x20 // plus the timer code
	NakSequence   Syndrome = 0x60
	NakInvalid    Syndrome = 0x61
	NakAccess     Syndrome = 0x62
	NakOperation  Syndrome = 0x63
	syndromeKinds          = 0x60
)

// IsAck reports whether the packet is acknowledged, with whatever credits.
func (s Syndrome) IsAck() bool { return s&syndromeKinds == 0 }

// IsRNR reports whether no receive was ready.
func (s Syndrome) IsRNR() bool { return s&syndromeKinds == RNRNak }

// IsNak reports whether the packet was refused for another reason.
func (s Syndrome) IsNak() bool { return s&syndromeKinds == NakSequence }

// Wait is how long the sender of an RNR NAK asks to wait.
func (s Syndrome) Wait() mono.Duration { return RNRTime(uint8(s)) }

// rnrTimes are the waits behind the timer codes, in µs.
var rnrTimes = [32]mono.Duration{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560,
	3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}

// RNRTime is the wait that a timer code stands for.
func RNRTime(code uint8) mono.Duration { return rnrTimes[code&31] * mono.Microsecond }
