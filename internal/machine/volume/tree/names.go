package tree

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// nameBatch is how many names are read at once.
const nameBatch = 512

// names reads the names in a directory, in their order; so many entries are
// listed already.
func (t *Tree) names(ctx context.Context, place *os.File, listed int) ([]string, error) {
	dir, err := openAt(place, ".", unix.O_RDONLY|unix.O_DIRECTORY, oneStep)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var out []string
	for {
		some, err := dir.Readdirnames(nameBatch)
		out = append(out, some...)
		if listed+len(out) > t.most {
			return nil, tooLong("the listing has more than %d entries", t.most)
		}
		if len(some) == 0 {
			slices.Sort(out)
			return out, end(err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// tooLong refuses a listing.
func tooLong(format string, most int) error {
	return cay.Errorf(cay.Invalid, format, most).
		WithHint("list directories further down, with a smaller depth, or look from inside a sandbox")
}

func end(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
