# @SHELL@ completion of flstudy, made by `flstudy completion @SHELL@`: to be made anew after an upgrade.

_flstudy_studies() {
    local state
    for state in studies/*/state.json; do
        if [ -e "$state" ]; then
            state=${state#studies/}
            printf '%s\n' "${state%/state.json}"
        fi
    done
}

_flstudy_values() { # words that may follow an option; 1: anything may
    case "$1" in
@VALUES@
    --resume | --import-from) _flstudy_studies ;;
    *) return 1 ;;
    esac
}

_flstudy_options() { # of a command
    case "$1" in
@OPTIONS@
    esac
}

_flstudy_words() { # of a command, beside options and files
    case "$1" in
@WORDS@
    esac
}

_flstudy_keys() { # options as far as the next dot: sections come before what is in them
    local key rest
    for key in $(_flstudy_options "$1"); do
        rest=${key#"$2"}
        case "$key" in
        "$2"*) case "$rest" in
            ?*.*) printf '%s.\n' "$2${rest%%.*}" ;;
            *) printf '%s\n' "$key" ;;
            esac ;;
        esac
    done | sort -u
}

_flstudy() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" command="${COMP_WORDS[1]}" words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$current"))
        return
    fi
    if [ "$current" = "=" ]; then # --key=value comes as three words
        current=""
    elif [ "$before" = "=" ]; then
        before="${COMP_WORDS[COMP_CWORD - 2]}"
    fi
    if words=$(_flstudy_values "$before"); then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
        return
    fi
    case "$current" in
    -*)
        COMPREPLY=($(compgen -W "$(_flstudy_keys "$command" "$current")" -- "$current"))
        case "${COMPREPLY[*]}" in
        *.) compopt -o nospace 2>/dev/null ;; # which zsh does without
        esac
        ;;
    *) COMPREPLY=($(compgen -W "$(_flstudy_words "$command")" -- "$current") $(compgen -f -- "$current")) ;;
    esac
}

complete -o filenames -F _flstudy flstudy
