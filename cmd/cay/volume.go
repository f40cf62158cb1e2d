package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// volumeCmd is about volumes. VOLUME is a name or an id everywhere.
type volumeCmd struct {
	Create volumeCreateCmd `cmd:"" help:"Make a volume, empty or with files; prints the id."`
	List   volumeListCmd   `cmd:"" help:"List the team's volumes."`
	Info   volumeInfoCmd   `cmd:"" help:"Show a volume: how full it is, and which sandboxes mount it."`
	Resize volumeResizeCmd `cmd:"" help:"Change how much a volume may hold, mounted or not."`
	Delete volumeDeleteCmd `cmd:"" help:"Remove volumes with all in them, or a snapshot of one."`

	Ls volumeLsCmd `cmd:"" help:"List files of a volume."`
	Cp volumeCpCmd `cmd:"" help:"Copy files between volumes, this machine, standard input and output."`
	Rm volumeRmCmd `cmd:"" help:"Remove files of a volume."`

	Snapshot  volumeSnapshotCmd  `cmd:"" help:"Keep the files that a volume has now, under a name."`
	Snapshots volumeSnapshotsCmd `cmd:"" help:"List the snapshots of a volume."`
	Restore   volumeRestoreCmd   `cmd:"" help:"Have a volume have the files of a snapshot, in place of all in it."`
	Clone     volumeCloneCmd     `cmd:"" help:"Make a volume with the files of another, or of its snapshot."`

	Fill   volumeFillCmd   `cmd:"" help:"Put an archive, a directory, a volume or an S3 prefix into a volume."`
	Export volumeExportCmd `cmd:"" help:"Write a volume's files as an archive, a directory or an S3 prefix."`
}

type volumeCreateCmd struct {
	Name string `arg:"" help:"Letters, digits, _ and -."`
	Size string `placeholder:"SIZE" help:"The most that it may hold, e.g. 10GB [the server's usual]."`
	From string `placeholder:"SOURCE" help:"Its first content, as cay volume fill takes it."`
}

func (c *volumeCreateCmd) Run(a *app) error {
	in := client.NewVolume{Name: c.Name}
	if c.Size != "" {
		mb, err := volumeSize(c.Size)
		if err != nil {
			return err
		}
		in.SizeMB = mb
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	v, err := api.CreateVolume(a.ctx, in)
	if err != nil {
		return err
	}
	if c.From != "" {
		if _, err := fill(a, api, v.ID, "/", c.From, client.FillOptions{}); err != nil {
			fmt.Fprintf(a.err, "volume %s is there, and not filled\n", clean(v.Name))
			return err
		}
	}
	if a.json {
		return a.printJSON(v)
	}
	fmt.Fprintln(a.out, clean(v.ID))
	fmt.Fprintf(a.err, "  mount it: cay sandbox create --volume %s:/mnt/%s\n", clean(v.Name), clean(v.Name))
	return nil
}

// volumeSize reads a size as people write it. K, M, G and T are powers of 1024,
// as everywhere in Cay where sizes of disks and memory are bounds.
func volumeSize(text string) (mb int, err error) {
	wrong := cay.Errorf(cay.Invalid, "%.40q is no size", text).WithHint("write it like 500MB, 10GB or 1TB")
	digits := strings.TrimRight(strings.ToUpper(strings.TrimSpace(text)), "BIMGT ")
	unit := strings.ToUpper(strings.TrimSpace(strings.TrimSpace(text)[len(digits):]))
	factor := map[string]float64{
		"M": 1, "MB": 1, "MIB": 1, "G": 1 << 10, "GB": 1 << 10, "GIB": 1 << 10, "T": 1 << 20, "TB": 1 << 20, "TIB": 1 << 20,
	}[unit]
	n, perr := strconv.ParseFloat(digits, 64)
	if perr != nil || factor == 0 || !(n > 0) || n*factor > cay.MaxVolumeMB || strings.ContainsAny(digits, "EXP_") {
		return 0, wrong
	}
	return int(n * factor), nil
}

// volumeMounts reads VOLUME[/DIR]:PATH[:ro].
func volumeMounts(texts []string) ([]client.VolumeMount, error) {
	var out []client.VolumeMount
	for _, text := range texts {
		rest, readOnly := strings.CutSuffix(text, ":ro")
		from, path, found := strings.Cut(rest, ":")
		name, dir, _ := strings.Cut(from, "/")
		if !found || name == "" || !strings.HasPrefix(path, "/") {
			return nil, cay.Errorf(cay.Invalid, "%.200q is no mount of a volume", text).WithHint("say VOLUME:/path, VOLUME/DIR:/path or VOLUME:/path:ro")
		}
		out = append(out, client.VolumeMount{Name: name, Path: path, SubPath: dir, ReadOnly: readOnly})
	}
	return out, nil
}

type volumeListCmd struct{}

func (volumeListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Volumes(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"NAME", "SIZE", "CREATED", "ID"}}
	for _, v := range list {
		t.add(clean(v.Name), size(v.SizeMB), ago(v.CreatedAt, time.Now()), clean(v.ID))
	}
	t.print(a.out, width(a.out))
	return nil
}

type volumeInfoCmd struct {
	Volume string `arg:"" help:"Its name or id."`
}

func (c *volumeInfoCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	v, err := api.Volume(a.ctx, c.Volume)
	if err != nil {
		return err
	}
	return a.printVolume(v)
}

func (a *app) printVolume(v client.Volume) error {
	if a.json {
		return a.printJSON(v)
	}
	rows := [][2]string{{"name", v.Name}, {"id", v.ID}, {"size", size(v.SizeMB)}, {"created", ago(v.CreatedAt, time.Now())}}
	if u := v.Usage; u != nil {
		rows = append(rows, [][2]string{
			{"used", volume(u.UsedBytes) + " of " + volume(u.SizeBytes)},
			{"files", strconv.FormatInt(u.Files, 10)},
			{"on disk", volume(u.StoredBytes)},
		}...)
	}
	if len(v.Sandboxes) > 0 {
		rows = append(rows, [2]string{"mounted", strings.Join(v.Sandboxes, " ")})
	}
	for _, row := range rows {
		fmt.Fprintf(a.out, "%-8s %s\n", row[0], clean(row[1]))
	}
	return nil
}

type volumeResizeCmd struct {
	Volume string `arg:"" help:"Its name or id."`
	Size   string `arg:"" help:"The most that it may hold, e.g. 10GB."`
}

func (c *volumeResizeCmd) Run(a *app) error {
	mb, err := volumeSize(c.Size)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	v, err := api.ResizeVolume(a.ctx, c.Volume, mb)
	if err != nil {
		return err
	}
	return a.printVolume(v)
}

type volumeDeleteCmd struct {
	Volumes  []string `arg:"" name:"volume" help:"Names or ids."`
	Snapshot string   `placeholder:"NAME" help:"Remove this snapshot of the volume, and not the volume."`
}

func (c *volumeDeleteCmd) Run(a *app) error {
	if c.Snapshot != "" && len(c.Volumes) > 1 {
		return cay.Errorf(cay.Invalid, "--snapshot is of one volume").WithHint("name a single volume")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	if c.Snapshot != "" {
		return api.RemoveVolumeSnapshot(a.ctx, c.Volumes[0], c.Snapshot)
	}
	for _, v := range c.Volumes {
		if err := api.DeleteVolume(a.ctx, v); err != nil {
			return err
		}
	}
	return nil
}

type volumeSnapshotCmd struct {
	Volume string `arg:"" help:"Its name or id."`
	Name   string `arg:"" optional:"" help:"Its name [the time]."`
}

func (c *volumeSnapshotCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	s, err := api.SnapshotVolume(a.ctx, c.Volume, c.Name)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(s)
	}
	fmt.Fprintln(a.out, clean(s.Name))
	fmt.Fprintf(a.err, "  go back: cay volume restore %s %s\n", clean(c.Volume), clean(s.Name))
	return nil
}

type volumeSnapshotsCmd struct {
	Volume string `arg:"" help:"Its name or id."`
}

func (c *volumeSnapshotsCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.VolumeSnapshots(a.ctx, c.Volume)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"NAME", "SIZE", "CREATED", "ID"}}
	for _, s := range list {
		t.add(clean(s.Name), size(s.SizeMB), ago(s.CreatedAt, time.Now()), clean(s.ID))
	}
	t.print(a.out, width(a.out))
	return nil
}

type volumeRestoreCmd struct {
	Volume   string `arg:"" help:"Its name or id."`
	Snapshot string `arg:"" help:"The snapshot's name."`
}

// Help says what becomes of the files.
func (volumeRestoreCmd) Help() string {
	return "All that is in the volume now is lost; take a snapshot of it first, or make a volume of the snapshot with cay volume clone --snapshot. " +
		"No sandbox may mount the volume meanwhile."
}

func (c *volumeRestoreCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	v, err := api.RestoreVolume(a.ctx, c.Volume, c.Snapshot)
	if err != nil || !a.json {
		return err
	}
	return a.printJSON(v)
}

type volumeCloneCmd struct {
	Volume   string `arg:"" help:"Its name or id."`
	Name     string `arg:"" help:"The new volume's name."`
	Snapshot string `placeholder:"NAME" help:"Take the files of this snapshot [those of now]."`
}

func (c *volumeCloneCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	v, err := api.CloneVolume(a.ctx, c.Volume, c.Name, c.Snapshot)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(v)
	}
	fmt.Fprintln(a.out, clean(v.ID))
	return nil
}
