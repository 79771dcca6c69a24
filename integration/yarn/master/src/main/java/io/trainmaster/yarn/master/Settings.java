package io.trainmaster.yarn.master;

import java.io.File;
import org.apache.hadoop.conf.Configuration;

/**
 * What the node's {@code yarn-site.xml} says to ApplicationMasters.
 *
 * @param address the adapter's, {@code HOST:PORT}
 * @param ca PEM file with the certificate authority of an adapter with TLS; null: without
 * @param checkpoints a folder that all nodes share; empty: programs are given none
 * @param trainer what is run for a job without a command
 */
record Settings(String address, File ca, String checkpoints, String trainer) {
    static final String ADDRESS = "trainmaster.yarn.address";
    static final String CA = "trainmaster.yarn.ca";
    static final String CHECKPOINTS = "trainmaster.yarn.checkpoints";
    static final String TRAINER = "trainmaster.yarn.trainer";

    static Settings of(Configuration configuration) {
        String ca = configuration.getTrimmed(CA, "");
        return new Settings(
                configuration.getTrimmed(ADDRESS, "127.0.0.1:7071"),
                ca.isEmpty() ? null : new File(ca),
                configuration.getTrimmed(CHECKPOINTS, ""),
                configuration.getTrimmed(TRAINER, "trainmaster-trainer"));
    }
}
