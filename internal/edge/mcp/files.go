package mcp

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/guest"
)

const (
	maxEntries = 500
	maxDepth   = 10
	// linkFor is how long the link to a file opens it.
	linkFor = time.Hour
)

type pathIn struct {
	Path string `json:"path" jsonschema:"absolute, or from the user's home"`
	target
}

type uploadIn struct {
	Path     string `json:"path" jsonschema:"absolute, or from the user's home; directories above it are made"`
	Content  string `json:"content" jsonschema:"what the file is to hold"`
	Encoding string `json:"encoding,omitempty" jsonschema:"utf-8 (when left out) or base64"`
	target
}

type downloadIn struct {
	Path   string `json:"path" jsonschema:"absolute, or from the user's home"`
	Offset int64  `json:"offset,omitempty" jsonschema:"the byte to begin at: next_offset of the call before"`
	target
}

type downloadOut struct {
	Sandbox  string `json:"sandbox_id"`
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Content  string `json:"content,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Next     int64  `json:"next_offset,omitempty"`
	URL      string `json:"url,omitempty"`
}

type listDirIn struct {
	Path  string `json:"path,omitempty" jsonschema:"a directory; the user's home when left out"`
	Depth int    `json:"depth,omitempty" jsonschema:"how deep to go; 1 when left out, at most 10"`
	target
}

type entriesOut struct {
	Sandbox string         `json:"sandbox_id"`
	Entries []client.Entry `json:"entries"`
	More    int            `json:"more,omitempty"`
}

type moveIn struct {
	From string `json:"source" jsonschema:"what to move"`
	To   string `json:"destination" jsonschema:"its new path"`
	target
}

type entryOut struct {
	Sandbox string       `json:"sandbox_id"`
	Entry   client.Entry `json:"entry"`
}

func (f *Face) addFiles(s *sdk.Server) {
	add(f, s, tool{"upload_file", "Write a file", "Writes a file into a sandbox, in place of one that is there.", destroys}, uploadFile)
	add(f, s, tool{"download_file", "Read a file", "Reads a file of a sandbox: text in pages, images as images, the rest as base64, with a link to the whole file.", reads}, downloadFile)
	add(f, s, tool{"list_files", "List a directory", "Lists what is in a directory of a sandbox.", reads}, listFiles)
	add(f, s, tool{"move_file", "Move a file", "Moves or renames a file or a directory of a sandbox.", destroys}, moveFile)
	add(f, s, tool{"delete_file", "Delete a file", "Deletes a file, or a directory with all that is in it.", destroys}, deleteFile)
	add(f, s, tool{"create_folder", "Make a directory", "Makes a directory and those above it.", adds}, createFolder)
	add(f, s, tool{"get_file_info", "Describe a file", "Tells size, owner, permissions and times of a file or a directory.", reads}, getFileInfo)
}

func uploadFile(ctx context.Context, c *call, in uploadIn) (out entryOut, err error) {
	content := []byte(in.Content)
	switch strings.ToLower(in.Encoding) {
	case "", "utf-8", "utf8":
	case "base64":
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, cay.Errorf(cay.Invalid, "content: is no base64: %s", err)
		}
	default:
		return out, cay.Errorf(cay.Invalid, "encoding: must be utf-8 or base64")
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	if err := box.WriteFile(ctx, in.Path, "", strings.NewReader(string(content))); err != nil {
		return out, err
	}
	out.Sandbox = box.ID
	if out.Entry, err = box.Stat(ctx, in.Path, ""); err != nil {
		return out, err
	}
	c.say("wrote %d bytes to %s", len(content), out.Entry.Path)
	return out, nil
}

func downloadFile(ctx context.Context, c *call, in downloadIn) (out downloadOut, err error) {
	if in.Offset < 0 {
		return out, cay.Errorf(cay.Invalid, "offset: must be at least 0")
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	entry, err := box.Stat(ctx, in.Path, "")
	if err != nil {
		return out, err
	}
	if entry.Dir {
		return out, cay.Errorf(cay.Invalid, "path: %s is a directory", entry.Path).WithHint("list_files lists it")
	}
	out = downloadOut{Sandbox: box.ID, Path: entry.Path, Size: entry.Size, URL: c.fileURL(box, entry.Path)}
	if in.Offset >= entry.Size {
		c.say("[%d of %d bytes: there is no more]", min(in.Offset, entry.Size), entry.Size)
		return out, nil
	}
	most := int64(pageSize)
	image := imageType(entry.Path)
	if image != "" && in.Offset == 0 && entry.Size <= maxImage {
		most = maxImage
	}
	data, err := read(ctx, box, entry.Path, in.Offset, most)
	if err != nil {
		return out, err
	}
	if most == maxImage && strings.HasPrefix(http.DetectContentType(data), "image/") {
		c.bare, c.content = true, []sdk.Content{&sdk.ImageContent{Data: data, MIMEType: image}}
		c.link(out.URL, entry)
		return out, nil
	}
	more := in.Offset+int64(len(data)) < entry.Size
	if text := whole(data, more); utf8.Valid(text) {
		data, out.Encoding, out.Content = text, "utf-8", string(text)
	} else {
		data = data[:min(len(data), pageSize*3/4)] // as base64 it is a page again
		out.Encoding, out.Content = "base64", base64.StdEncoding.EncodeToString(data)
		more = in.Offset+int64(len(data)) < entry.Size
	}
	c.say("%s", out.Content)
	if more {
		out.Next = in.Offset + int64(len(data))
		c.say("[%s; bytes %d to %d of %d; read on with offset %d]", out.Encoding, in.Offset, out.Next, entry.Size, out.Next)
		c.link(out.URL, entry)
	}
	return out, nil
}

// read reads a part of a file.
func read(ctx context.Context, box *client.Sandbox, name string, offset, most int64) ([]byte, error) {
	body, err := box.ReadFileAt(ctx, name, "", offset, most)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, most))
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "the file did not come as a whole")
	}
	return data, nil
}

// imageType is the type of an image that models can see, by a file's name.
func imageType(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".gif":
		return "image/gif"
	case ".webp":
		return "image/webp"
	}
	return ""
}

// fileURL is a link to a whole file, which needs no key and ends by itself.
func (c *call) fileURL(box *client.Sandbox, name string) string {
	return c.portURL(box.ID, guest.AgentPort) + box.FileQuery(name, "", time.Now().Add(linkFor))
}

// link adds a link to a file.
func (c *call) link(url string, e client.Entry) {
	c.content = append(c.content, &sdk.ResourceLink{
		URI: url, Name: e.Name, Size: &e.Size, MIMEType: imageType(e.Name), Description: "the whole file, for an hour",
	})
}

func listFiles(ctx context.Context, c *call, in listDirIn) (out entriesOut, err error) {
	if in.Depth == 0 {
		in.Depth = 1
	}
	if in.Depth < 1 || in.Depth > maxDepth {
		return out, cay.Errorf(cay.Invalid, "depth: must be 1 to %d", maxDepth)
	}
	if in.Path == "" {
		in.Path = "."
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	list, err := box.ListDir(ctx, in.Path, "", uint32(in.Depth))
	if err != nil {
		return out, err
	}
	out = entriesOut{Sandbox: box.ID, Entries: list[:min(len(list), maxEntries)], More: max(0, len(list)-maxEntries)}
	var text strings.Builder
	for _, e := range out.Entries {
		fmt.Fprintf(&text, "%s %10d %s", e.Mode, e.Size, readable([]byte(e.Path)))
		if e.Dir {
			text.WriteByte('/')
		}
		text.WriteByte('\n')
	}
	if out.More > 0 {
		fmt.Fprintf(&text, "and %d more\n", out.More)
	}
	if len(list) == 0 {
		text.WriteString("it is empty")
	}
	c.say("%s", cut(text.String(), maxText))
	return out, nil
}

func moveFile(ctx context.Context, c *call, in moveIn) (out entryOut, err error) {
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	out.Sandbox = box.ID
	if out.Entry, err = box.Move(ctx, in.From, in.To, ""); err != nil {
		return out, err
	}
	c.say("it is %s now", out.Entry.Path)
	return out, nil
}

func deleteFile(ctx context.Context, c *call, in pathIn) (out doneOut, err error) {
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	if _, err := box.Stat(ctx, in.Path, ""); err != nil { // a removal of nothing succeeds
		return out, err
	}
	if err := box.Remove(ctx, in.Path, ""); err != nil {
		return out, err
	}
	c.say("%s is deleted", in.Path)
	return doneOut{box.ID, "deleted"}, nil
}

func createFolder(ctx context.Context, c *call, in pathIn) (out entryOut, err error) {
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	if err := box.MakeDir(ctx, in.Path, ""); err != nil && cay.KindOf(err) != cay.Conflict {
		return out, err
	}
	out.Sandbox = box.ID
	if out.Entry, err = box.Stat(ctx, in.Path, ""); err != nil {
		return out, err
	}
	if !out.Entry.Dir {
		return out, cay.Errorf(cay.Conflict, "path: %s is there, and no directory", out.Entry.Path)
	}
	c.say("%s is there", out.Entry.Path)
	return out, nil
}

func getFileInfo(ctx context.Context, c *call, in pathIn) (out entryOut, err error) {
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	out.Sandbox = box.ID
	if out.Entry, err = box.Stat(ctx, in.Path, ""); err != nil {
		return out, err
	}
	kind := "file"
	if out.Entry.Dir {
		kind = "directory"
	}
	c.say("%s: %s, %d bytes, %s %s:%s, changed %s", readable([]byte(out.Entry.Path)), kind, out.Entry.Size, out.Entry.Mode, out.Entry.Owner, out.Entry.Group, out.Entry.Modified.Format(time.RFC3339))
	return out, nil
}
