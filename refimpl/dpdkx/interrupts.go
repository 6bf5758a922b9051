//go:build dpdk

package dpdkx

/*
#include <stdlib.h>
#include "interrupts.h"
*/
import "C"

import (
	"time"
	"unsafe"

	"github.com/yerden/go-dpdk/ethdev"
)

// Turn has a port stopped and started on the thread on which drivers hear of their peers (interrupts.h says why).
// It is its user's thread's own.
type Turn struct {
	c    *C.struct_mr_turn
	port ethdev.Port
}

// TurnState is what became of what was asked for.
type TurnState int

// States of a turn.
const (
	TurnIdle   TurnState = C.MR_TURN_IDLE
	TurnAsked  TurnState = C.MR_TURN_ASKED // neither done nor refused yet: the port is the other thread's
	TurnDone   TurnState = C.MR_TURN_DONE
	TurnFailed TurnState = C.MR_TURN_FAILED // not started
)

// turnLimit is how long Close waits for the interrupt thread, which a driver may have stopped for good.
const turnLimit = 2 * time.Second

// NewTurn makes the turns of a port.
func NewTurn(port ethdev.Port) *Turn {
	t := &Turn{c: (*C.struct_mr_turn)(C.calloc(1, C.sizeof_struct_mr_turn)), port: port}
	t.c.port = C.uint16_t(port)
	return t
}

// Start asks for the port to be started, and to be stopped before where it runs. State tells the end. Not while one is asked for.
func (t *Turn) Start(running bool) { C.mr_turn_ask(t.c, C.bool(running), true) }

// State tells how far it is.
func (t *Turn) State() TurnState { return TurnState(C.mr_turn_state(t.c)) }

// Close waits for what was asked for, stops the port where it runs then, and frees the turns. It reports false when the
// other thread did not come round to it: the port must be left as it is.
func (t *Turn) Close(running bool) bool {
	if t.State() == TurnAsked {
		if !t.wait() {
			return false // and not freed: it may still come
		}
		running = t.State() == TurnDone
	}
	if running {
		C.mr_turn_ask(t.c, true, false)
		if !t.wait() {
			return false
		}
	}
	C.free(unsafe.Pointer(t.c))
	return true
}

func (t *Turn) wait() bool { return await(func() bool { return t.State() != TurnAsked }) }

func await(done func() bool) bool {
	for end := time.Now().Add(turnLimit); !done(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// ParkInterrupts stops the thread on which drivers hear of their peers, for good: what comes before the end of the environment
// (eal.Cleanup), which takes that thread's memory away. False: it did not come round to it, and the environment must stay.
func ParkInterrupts() bool {
	return C.mr_park_ask() == 0 && await(func() bool { return bool(C.mr_parked()) })
}
