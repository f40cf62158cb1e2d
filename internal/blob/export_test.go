package blob

import "time"

// Tries is how often a bucket in a hurry is asked at most.
const Tries = 4

// Hurry has a bucket wait no time before it tries again, and less often.
func Hurry(b *Bucket) *Bucket {
	b.wait, b.tries = time.Microsecond, Tries
	return b
}
