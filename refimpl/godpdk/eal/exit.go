//go:build dpdk

package eal

import "C"

import "errors"

// ErrExit is returned where EAL wanted to end the process: of wrong arguments (since DPDK 25.11), or as it was asked for help.
var ErrExit = errors.New("eal: ended instead of starting")

// starting takes the result of the one start there is.
var starting chan result

//export mrEALExits
func mrEALExits() {
	starting <- result{err: ErrExit}
	select {} // the thread stays inside exit(3), of which nothing more comes
}
