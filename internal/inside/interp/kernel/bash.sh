# The bash kernel of one context, sourced by
#
#	bash -c 'START' bash LIB DIR [ID STATUS]
#
# where START sources this and loops (see languages.go). Each line of
# DIR/requests is a number and asks for the code in DIR/code to be evaluated; a
# JSON line in DIR/events says that it was, with its status. The files are opened
# each time, so that what the code starts inherits nothing of ours.
#
# Code that ends the shell (exit, set -e, an interrupt) does not end the
# context: the shell writes its state down and starts itself again.
if [[ -s $2/state ]]; then
	{ builtin source "$2/state"; } >/dev/null 2>&1
fi
__cay_lib=$1
__cay_dir=$2
# The execution to report; no number if nothing ran when the shell ended.
__cay_id=${3-0}
__cay_status=${4-0}
__cay_code=
__cay_undo=${__cay_undo-}

# __cay_next STATUS reports the end of what ran, and takes what is next.
__cay_next() {
	if [[ $__cay_id ]]; then
		builtin printf '{"type":"done","id":%d,"status":%d}\n' "$__cay_id" "${__cay_status:-$1}" >"$__cay_dir/events"
	fi
	__cay_id= __cay_status=
	until IFS= builtin read -r __cay_id <"$__cay_dir/requests"; do __cay_id=; done
	IFS= builtin read -r -d '' __cay_code <"$__cay_dir/code" || builtin :
}

# __cay_stop stops what runs, where an interrupt was meant for it: one that comes
# late finds the next request here.
__cay_stop() {
	builtin local __cay_meant=
	builtin read -r __cay_meant 2>/dev/null <"$__cay_dir/stopped"
	if [[ $__cay_id && 10#${__cay_meant:-0} -eq $__cay_id ]]; then
		__cay_leave 130
	fi
}

# __cay_call NAME VALUE sets a variable until __cay_undo is evaluated.
__cay_call() {
	__cay_undo="$(builtin declare -p "$1" 2>/dev/null || builtin printf 'unset -v %s' "$1")
$__cay_undo"
	builtin export "$1=$2"
}

# __cay_leave [STATUS] starts the shell again in place of its end. An interrupt
# in its first moments calls it once more, which does no harm: exit, within the
# trap of an exit, would end the shell.
__cay_leave() {
	__cay_status=${1-$?}
	builtin trap : INT
	{
		builtin declare -p
		builtin declare -f
		builtin alias -p
		builtin shopt -p
		builtin shopt -po
		builtin printf 'cd -- %q\n' "$PWD"
		builtin umask -p
	} >|"$__cay_dir/state" 2>/dev/null
	# An interrupt under way is over before the byte is there, and is trapped.
	until builtin read -r -N 1 <"$__cay_dir/turn"; do builtin :; done
	builtin exec "$BASH" -c "$BASH_EXECUTION_STRING" bash "$__cay_lib" "$__cay_dir" "$__cay_id" "$__cay_status"
}
builtin trap __cay_leave EXIT
builtin trap __cay_stop INT
# Signals that end a shell leave no other sign: the trap of its exit finds the
# status of the command before.
for __cay_status in 1 4 5 6 7 8 10 11 12 13 14 15 24 25 26 31; do
	builtin trap "__cay_leave $((128 + __cay_status))" "$__cay_status"
done
__cay_status=${4-0}
: >|"$__cay_dir/state" # all variables are in it, and no shell reads it again
# Until now an interrupt would have ended this shell with all its variables. The
# agent sends none while the FIFO is empty.
builtin printf 1 >"$__cay_dir/turn"
