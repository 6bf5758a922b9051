// Package planted holds the names of bugs that are planted in the core on purpose, one at a time, to see whether the
// checkers of tools/vopr notice. Without the build tag "planted" there are none: Is is a constant false, and what stands
// behind it is not compiled in.
package planted

// Bug is one wrong rule. Most are wrong rules of the model that the protocol was designed with, or rules that trials
// rejected; the others are slips that an implementation makes.
type Bug uint8

// Bugs, by the half of the transport that they sit in.
const (
	None Bug = iota

	// Responder: placing, turns, errors.
	NoOverlapCheck         // a late WRITE packet overwrites what a later one has placed
	NoOverlapCheckAtCommit // a held tail does
	HeldCountsAsPlaced     // bytes are left out for a later packet that is not in memory yet
	TailEarly              // the last packet does not wait for its turn
	HeldFullAcked          // a tail without a buffer is dropped and acknowledged
	NoKeyRecheck           // what became of a held tail's write is not looked at
	AtomicTwice            // a copy of an atomic runs again
	RelaxedBypassesAtomic  // a relaxed WRITE passes an unanswered atomic
	AliasBypassesAtomic    // a WRITE passes an unanswered atomic to the same bytes under another address
	BindAtArrival          // a SEND takes the next receive, whichever SEND it is
	InvalidateAtArrival    // a SEND with invalidate ends the key before its turn
	FatalAtArrival         // a bad request ends the QP before its turn
	AckWhatReleased        // a packet that released a failure is acknowledged
	FatalRefusalOnce       // a failed QP says so only once
	UnknownQPSilent        // a request to no QP gets no answer
	DuplicateNotAcked      // a packet behind the window gets no answer
	ErrorKeepsBound        // receives in hand are not flushed
	ResetKeepsBound        // receives in hand do not go back to the SRQ
	ReceiveTwice           // the receive of a failed SEND is flushed, too
	ReceiveUnbounded       // the length of a receive is not looked at
	LengthOfLastPacket     // a receive completion says the bytes of the last packet
	SolicitedLost
	HeldLeak
	OwnBytesChecked   // a WRITE that ends out of bounds places what is in bounds
	KeptResultsCount  // answers that are kept count against max_dest_rd_atomic
	RefusedIsReported // a refused packet stands in the path block, too

	// Responses.
	ReadResendRereads // a response that is sent again is read again
	ResponseLostForGood
	ResponseLeak

	// Requester.
	NoFence
	FenceWaitsForAckOnly
	LocalsWaitForNobody // requests go before a local one that is held up by its fence
	LocalsIgnoreFence
	NoAtomicFence
	NoReadLimit
	ShortTail // the last packet of a WRITE may be a byte
	ReadDoneOnAck
	CompleteOnLastAck // a request is complete when its last packet is acknowledged
	RefusalAsDelivered
	NoZeroWindowProbe
	RNREarlyCounted // refusals of packets that came before their turn count
	NoQPCopiesCounted
	FatalNotCumulative
	NoReadProbe
	DeadRequesterMute // responses to a QP that is gone are not acknowledged

	// Association.
	OldRequestsRun   // requests of a former life of the QP number are executed
	OldResponsesLand // responses to one are taken
	OldAcksCount     // acknowledgements of a former life of the QP count
	RequestLostForGood
	WindowLeak
	NoICRC

	bugs
)

var names = [bugs]string{"none",
	"no-overlap-check", "no-overlap-check-at-commit", "held-counts-as-placed", "tail-early", "held-full-acked", "no-key-recheck", "atomic-twice",
	"relaxed-bypasses-atomic", "alias-bypasses-atomic", "bind-at-arrival", "invalidate-at-arrival", "fatal-at-arrival", "ack-what-released", "fatal-refusal-once",
	"unknown-qp-silent", "duplicate-not-acked", "error-keeps-bound", "reset-keeps-bound", "receive-twice", "receive-unbounded",
	"length-of-last-packet", "solicited-lost", "held-leak", "own-bytes-checked", "kept-results-count", "refused-is-reported",
	"read-resend-rereads", "response-lost-for-good", "response-leak",
	"no-fence", "fence-waits-for-ack-only", "locals-wait-for-nobody", "locals-ignore-fence", "no-atomic-fence", "no-read-limit", "short-tail", "read-done-on-ack", "complete-on-last-ack",
	"refusal-as-delivered", "no-zero-window-probe", "rnr-early-counted", "no-qp-copies-counted", "fatal-not-cumulative",
	"no-read-probe", "dead-requester-mute",
	"old-requests-run", "old-responses-land", "old-acks-count", "request-lost-for-good", "window-leak", "no-icrc",
}

// String returns the name by which a bug is chosen.
func (b Bug) String() string { return names[b] }

// All lists the bugs.
func All() (all []Bug) {
	for b := None + 1; b < bugs; b++ {
		all = append(all, b)
	}
	return all
}
