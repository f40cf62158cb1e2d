package image

import (
	"context"

	"github.com/cay-run/cay/internal/spawn"
)

// Format is raised when the same tree would make another image.
const Format = 3

// imageUUID is the same in every image, so that equal trees are equal images.
const imageUUID = "6b9f1d2c-0c4e-4b7a-9a52-0d4ec4a7c001"

// FromTree writes a tree that is not a recipe's into one EROFS file, which may
// not be there yet.
func FromTree(ctx context.Context, tree, out string) error { return makeImage(ctx, tree, out) }

// makeImage writes a tree into one EROFS file, as gVisor reads it: data never
// beside its inode (programs would not start), no extended attributes (their
// files would be refused), nothing compressed. Times are kept, because Python
// compares them with those in its compiled files; the epoch is only an upper
// bound, and what the image says of its own making.
func makeImage(ctx context.Context, tree, out string) error {
	if err := need("mkfs.erofs"); err != nil {
		return err
	}
	env := spawn.Env("SOURCE_DATE_EPOCH=4102444800")
	return run(ctx, nil, "/", env, "mkfs.erofs", "--quiet",
		"-E", "noinline_data", "-x", "-1", "-U", imageUUID,
		out, tree)
}
